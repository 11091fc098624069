"""Several users on one machine: each has a cluster, and none reads, uses, obstructs or ends another's."""

import json
import os
import shutil
import stat
import subprocess
import tempfile
import unittest

from kit import BIN, DEADLINE_SECONDS, ClusterTest, Result, processes, sanitizer_options

FIRST_UID = 47000  # Nobody's; the process id makes it this test's alone, so that a plain `stop` ends nothing else.
UIDS = 10000


class Neighbour:
    """Another user: a home, a copy of the programs, and nothing in common with the first."""

    def __init__(self):
        self.uid = FIRST_UID + os.getpid() % UIDS
        self.folder = tempfile.mkdtemp(prefix="rayctl-test-")
        os.chmod(self.folder, 0o755)
        self.home = os.path.join(self.folder, "home")
        findings = os.path.join(self.folder, "findings")
        for path in (self.home, findings):
            os.mkdir(path, 0o700)
            os.chown(path, self.uid, self.uid)
        # A stranger may not look into the folder of a checkout.
        for name in ("rayctl", "rayctl-shim"):
            shutil.copy(os.path.join(BIN, name), self.folder)
        self.env = {"PATH": os.environ.get("PATH", ""), "HOME": self.home, **sanitizer_options(findings)}
        self.runtime = f"/tmp/rayctl-{self.uid}"

    def call(self, *words):
        return Result(subprocess.run([str(word) for word in words], user=self.uid, group=self.uid, extra_groups=[],
                                     env=self.env, cwd="/", capture_output=True, text=True, stdin=subprocess.DEVNULL,
                                     timeout=DEADLINE_SECONDS, check=False))

    def run(self, *words):
        return self.call(os.path.join(self.folder, "rayctl"), *words)

    def start(self, name="n", port="0"):
        return self.run("start", "--head", "--port", port, "--dashboard-port", "0", "--num-cpus", "2", "--node-name", name,
                        "--state-dir", os.path.join(self.home, name), "-o", "json")

    def daemons(self):
        return {words[words.index("--state-dir") + 1] for _, words in processes()
                if "--state-dir" in words and words[0].startswith(self.folder)}

    def remove(self):
        self.run("stop")
        shutil.rmtree(self.folder, ignore_errors=True)
        if os.path.lexists(self.runtime):
            shutil.rmtree(self.runtime)


@unittest.skipUnless(os.geteuid() == 0, "becomes another user")
class Users(ClusterTest):
    autostart = False

    def setUp(self):
        super().setUp()
        self.other = Neighbour()
        self.addCleanup(self.other.remove)

    def started(self, *args):
        done = self.other.start(*args)
        self.assertEqual(done.code, 0, done)
        return json.loads(done.out)

    def test_each_has_a_cluster_and_sees_nothing_of_the_other(self):
        self.cluster.start("--num-cpus", "2")
        job = self.cluster.submit("--", "sh", "-c", self.gated())
        (pid, _), = self.ranks_run(job, 1).values()
        started = self.started()
        # Neither is in the other's way, and each finds its own by itself.
        self.assertEqual(self.other.run("submit", "--", "sh", "-c", "id -u").out, f"{self.other.uid}\n")
        jobs = json.loads(self.other.run("list", "jobs", "-o", "json").out)["jobs"]
        self.assertEqual([job["state"] for job in jobs], ["SUCCEEDED"])
        self.assertEqual(self.other.run("status", "-o", "json").out.count(started["address"]), 1)
        # Nothing of the first is theirs to read, sockets and tokens least of all.
        for path in (f"/tmp/rayctl-{os.getuid()}", self.cluster.state, self.cluster.home + "/.rayctl"):
            self.assertNotEqual(self.other.call("ls", path).code, 0, path)
        refused = self.other.run("status", "--address", self.cluster.address)
        self.assertEqual(refused.code, 1, refused)
        self.assertIn("token", refused.err)
        with open(f"/proc/{pid}/environ", "rb") as environment:
            sockets = [entry.split(b"=", 1)[1].decode() for entry in environment.read().split(b"\0")
                       if entry.startswith(b"RAYCTL_SOCKET=")]
        connect = "import socket, sys; socket.socket(socket.AF_UNIX).connect(sys.argv[1])"
        tried = self.other.call("/usr/bin/python3", "-c", connect, sockets[0])
        self.assertIn("PermissionError", tried.err)
        # A plain stop ends what its user started, and that alone.
        before = self.cluster.daemons()
        stopped = self.other.run("stop")
        self.assertEqual(stopped.code, 0, stopped)
        self.assertEqual(self.other.daemons(), set())
        self.assertFalse(os.path.exists(self.other.runtime))
        self.assertEqual(self.cluster.daemons(), before)
        self.steps.go("0")
        self.assertEqual(self.cluster.ok("wait", job).code, 0)

    def test_a_run_takes_read_only_folders_along(self):
        """Which its user cannot remove as they are: the node's copy of a working directory, and what a job made."""
        project = os.path.join(self.other.home, "project")
        self.assertEqual(self.other.call("mkdir", "-p", os.path.join(project, "sub")).code, 0)
        self.assertEqual(self.other.call("touch", os.path.join(project, "sub", "file")).code, 0)
        self.other.env["TMPDIR"] = self.other.home
        command = "mkdir -p made/deep && touch made/deep/file && chmod -R a-w made && echo up"
        done = self.other.run("run", "--num-cpus", "1", "--working-dir", project, "--", "sh", "-c", command)
        self.assertEqual((done.code, done.out), (0, "up\n"), done)
        self.assertEqual(os.listdir(self.other.home), ["project"])
        client = subprocess.Popen([os.path.join(self.other.folder, "rayctl"), "run", "--num-cpus", "1", "--working-dir",
                                   project, "--", "sh", "-c", command + " && exec sleep 1000"], user=self.other.uid,
                                  group=self.other.uid, extra_groups=[], env=self.other.env, cwd="/", text=True,
                                  stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
        self.addCleanup(client.communicate)
        self.addCleanup(client.kill)
        self.assertEqual(client.stdout.readline(), "up\n")
        client.kill()
        self.cluster.until(lambda: not self.other.daemons(), "the private cluster ends")
        self.assertEqual(os.listdir(self.other.home), ["project"])
        self.assertFalse(os.path.exists(self.other.runtime))

    def test_stop_ends_every_node_of_its_user_or_the_named_one(self):
        one, two = self.started("one"), self.started("two")
        self.assertEqual(self.other.daemons(), {one["state_dir"], two["state_dir"]})
        stopped = self.other.run("stop", "--state-dir", one["state_dir"])
        self.assertEqual(stopped.code, 0, stopped)
        self.assertEqual(self.other.daemons(), {two["state_dir"]})
        self.started("one")
        stopped = self.other.run("stop")
        self.assertEqual(stopped.code, 0, stopped)
        self.assertEqual(len(stopped.out.splitlines()), 4, stopped)
        self.assertEqual(self.other.daemons(), set())
        again = self.other.run("stop")
        self.assertEqual((again.code, again.out), (0, "nothing to stop\n"))

    def test_a_taken_port_is_said_with_its_owner(self):
        self.cluster.start("--num-cpus", "2")
        port = self.cluster.address.rsplit(":", 1)[1]
        done = self.other.start(port=port)
        self.assertEqual(done.code, 1, done)
        self.assertIn(f"port {port} is taken by a process of user root", done.err)
        self.assertIn("--port", done.err)
        self.assertEqual(self.other.daemons(), set())

    def test_a_runtime_folder_that_somebody_else_made_first_is_refused(self):
        # As root it may be written to all the same, so here the user who starts is the other one.
        os.mkdir(self.other.runtime, 0o777)
        os.chmod(self.other.runtime, 0o777)
        fake = os.path.join(self.other.runtime, "0123456789abcdef")
        os.mkdir(fake)
        with open(os.path.join(fake, "head.json"), "w", encoding="utf-8") as file:
            json.dump({"pid": os.getpid(), "start_ticks": 1, "address": "192.0.2.1:6379", "state_dir": "/"}, file)
        done = self.other.start()
        self.assertEqual(done.code, 1, done)
        self.assertIn(f"{self.other.runtime} belongs to user root (0)", done.err)
        self.assertIn("remove it", done.err)
        self.assertEqual(os.listdir(self.other.runtime), ["0123456789abcdef"])
        self.assertEqual(self.other.daemons(), set())
        # What it says of a head is not believed either.
        status = self.other.run("status")
        self.assertEqual(status.code, 3, status)
        self.assertNotIn("192.0.2.1", status.err)
        self.assertEqual(self.other.run("stop").code, 0)
        self.assertTrue(os.path.exists(os.path.join(fake, "head.json")))

    def test_a_link_in_its_place_is_refused(self):
        target = os.path.join(self.other.home, "elsewhere")
        os.mkdir(target, 0o700)
        os.chown(target, self.other.uid, self.other.uid)
        os.symlink(target, self.other.runtime)
        try:
            done = self.other.start()
            self.assertEqual(done.code, 1, done)
            self.assertIn(self.other.runtime, done.err)
            self.assertEqual(os.listdir(target), [])
        finally:
            os.unlink(self.other.runtime)

    def test_the_state_of_another_user_is_refused(self):
        folder = os.path.join(self.other.folder, "roots")
        os.mkdir(folder, 0o755)
        done = self.other.run("start", "--head", "--port", "0", "--dashboard-port", "0", "--state-dir", folder)
        self.assertEqual(done.code, 1, done)
        self.assertIn(f"{folder} belongs to user root (0)", done.err)
        self.assertEqual(stat.S_IMODE(os.stat(folder).st_mode), 0o755)
        self.assertEqual(os.listdir(folder), [])


if __name__ == "__main__":
    unittest.main()
