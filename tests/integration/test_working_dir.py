"""Folders that go along with a job: packed, sent once, unpacked on every node, one writable copy a job."""

import os
import signal
import tempfile
import unittest

from kit import ClusterTest

MIB = 1 << 20
GIB = 1 << 30


class WorkingDirTest(ClusterTest):
    def setUp(self):
        super().setUp()
        self.project = os.path.join(self.cluster.folder, "my project")
        os.makedirs(os.path.join(self.project, "pkg", "données"))
        self.write("main.py", "import pkg.lib, sys\nprint('main', pkg.lib.WORD, sys.argv[1:])\n")
        self.write("pkg/lib.py", "WORD = 'lib'\n")
        self.write("pkg/données/ü.txt", "unicode\n")
        self.write("tool", "#!/bin/sh\necho tool runs\n")
        os.chmod(os.path.join(self.project, "tool"), 0o755)
        os.symlink("pkg/données/ü.txt", os.path.join(self.project, "link"))

    def write(self, name, text):
        with open(os.path.join(self.project, name), "w", encoding="utf-8") as file:
            file.write(text)

    def head_store(self):
        return os.path.join(self.cluster.state, "head", "working_dirs")

    def only_digest(self):
        names = os.listdir(self.head_store())
        self.assertEqual(len(names), 1, names)
        return names[0]

    def test_the_folder_is_there_whole_and_writable_and_the_persons_own_stays_as_it_was(self):
        command = "cat link; ./tool; test -w main.py && rm tool && echo more >> main.py; ls -a | sort | tr '\\n' ' '"
        done = self.cluster.run("submit", "--working-dir", self.project, "--", "sh", "-c", command)
        self.assertEqual((done.code, done.out), (0, "unicode\ntool runs\n. .. link main.py pkg "), done)
        self.assertTrue(os.path.exists(os.path.join(self.project, "tool")))
        # Neither is what the node keeps for the next job.
        again = self.cluster.run("submit", "--working-dir", self.project, "--", "./tool")
        self.assertEqual((again.code, again.out), (0, "tool runs\n"), again)
        self.assertEqual(self.cluster.json("describe", "1")["spec"]["working_dir"], self.only_digest())

    def test_a_job_files_folder_is_relative_to_the_file(self):
        with open(os.path.join(self.project, "job.yaml"), "w", encoding="utf-8") as file:
            file.write("entrypoint: python3 main.py one two\nworking_dir: .\n")
        done = self.cluster.run("submit", os.path.join("my project", "job.yaml"))
        self.assertEqual((done.code, done.out), (0, "main lib ['one', 'two']\n"), done)

    def test_ignored_files_stay_at_home(self):
        self.write(".gitignore", "*.txt\n")
        self.write(".rayctlignore", "/pkg/\n")
        os.mkdir(os.path.join(self.project, ".git"))
        done = self.cluster.run("submit", "--working-dir", self.project, "--", "sh", "-c", "ls -A | sort | tr '\\n' ' '")
        self.assertEqual((done.code, done.out), (0, ".gitignore .rayctlignore link main.py tool "), done)

    def test_it_is_sent_once_to_the_head_and_once_to_each_node(self):
        self.cluster.join("b", "--num-cpus", "8")
        words = ("submit", "--working-dir", self.project, "--cpus", "4", "--num-workers", "4", "--", "./tool")
        self.assertEqual(self.cluster.run(*words).out.count("tool runs\n"), 4)
        digest = self.only_digest()
        archive = os.stat(os.path.join(self.head_store(), digest))
        cached = [os.stat(os.path.join(state, "agent", "working_dirs", digest))
                  for state in [self.cluster.state, *self.cluster.agents]]
        # Now the head could send nothing more.
        os.truncate(os.path.join(self.head_store(), digest), 0)
        jobs = [self.cluster.submit(*words[1:]) for _ in range(3)]
        for job in jobs:
            self.assertEqual(self.cluster.run("wait", job).code, 0)
        self.assertEqual(os.stat(os.path.join(self.head_store(), digest)).st_ino, archive.st_ino)
        for state, before in zip([self.cluster.state, *self.cluster.agents], cached):
            folder = os.path.join(state, "agent", "working_dirs")
            self.assertEqual(os.listdir(folder), [digest])
            self.assertEqual(os.stat(os.path.join(folder, digest)).st_ino, before.st_ino)

    def test_jobs_that_start_at_once_share_one_transfer(self):
        words = ("--working-dir", self.project, "--cpus", "0", "--", "./tool")
        jobs = [self.cluster.submit(*words) for _ in range(4)]
        for job in jobs:
            done = self.cluster.run("wait", job)
            self.assertEqual(done.code, 0, done)
        folder = os.path.join(self.cluster.state, "agent", "working_dirs")
        self.assertEqual(os.listdir(folder), [self.only_digest()])

    def test_a_node_makes_room_by_what_was_not_used_for_the_longest(self):
        cache = os.path.join(self.cluster.state, "agent", "working_dirs")
        oldest, old, newer = ("0" * 64, "1" * 64, "2" * 64)
        for age, (digest, size) in enumerate(((oldest, 1 * GIB), (old, 6 * GIB), (newer, 6 * GIB))):
            folder = os.path.join(cache, digest)
            os.makedirs(folder)
            with open(os.path.join(folder, "weights"), "wb") as file:
                file.truncate(size)  # Takes no room.
            os.utime(folder, (1_000_000_000 + age,) * 2)
        done = self.cluster.run("submit", "--working-dir", self.project, "--", "./tool")
        self.assertEqual((done.code, done.out), (0, "tool runs\n"), done)
        # A job starts once its own copy is made, and that is after room was made.
        self.assertEqual(sorted(name for name in os.listdir(cache) if not name.endswith(".gone")),
                         sorted([newer, self.only_digest()]))

    def test_a_head_that_lost_it_gets_it_again(self):
        words = ("submit", "--working-dir", self.project, "--", "./tool")
        self.assertEqual(self.cluster.run(*words).code, 0)
        digest = self.only_digest()
        self.cluster.kill("head", signal.SIGKILL)
        os.remove(os.path.join(self.head_store(), digest))
        self.cluster.start()
        done = self.cluster.run(*words)
        self.assertEqual((done.code, done.out), (0, "tool runs\n"), done)
        self.assertEqual(self.only_digest(), digest)

    def test_a_folder_that_cannot_be_fetched_is_a_failed_start_that_says_why(self):
        words = ("submit", "--working-dir", self.project, "--", "./tool")
        self.assertEqual(self.cluster.run(*words).code, 0)
        digest = self.only_digest()
        # A node that does not have it, and a head whose disk has gone bad.
        self.cluster.join("b", "--num-cpus", "1", "--labels", "only=b")
        with open(os.path.join(self.head_store(), digest), "r+b") as archive:
            archive.write(b"bad")
        job_file = os.path.join(self.project, "..", "job.yaml")
        with open(job_file, "w", encoding="utf-8") as file:
            file.write(f"entrypoint: ./tool\nworking_dir: {self.project}\nscaling_config: {{label_selector: {{only: b}}}}\n")
        done = self.cluster.run("submit", job_file)
        job = self.cluster.job(2)
        self.assertEqual((job["state"], job["reason"]), ("FAILED", "START_FAILED"), job)
        self.assertIn("working directory", job["message"])
        self.assertIn("digest", job["message"])
        self.assertNotEqual(done.code, 0)
        self.assertEqual(os.listdir(os.path.join(self.cluster.agents[0], "agent", "working_dirs")), [])

    def test_the_next_attempt_finds_what_the_last_one_wrote(self):
        done = self.cluster.run("submit", "--max-failures", "1", "--working-dir", self.project, "--", "sh", "-c",
                                "cat state; echo attempt $RAYCTL_ATTEMPT > state; exit $((1 - RAYCTL_ATTEMPT))")
        self.assertEqual((done.code, done.out), (0, "attempt 0\n"), done)

    def test_more_than_the_limit_is_refused_before_anything_is_sent(self):
        os.mkdir(os.path.join(self.project, "data"))
        huge = os.path.join(self.project, "data", "huge.bin")
        with open(huge, "wb") as file:
            file.truncate(501 * MIB)
        self.assertLess(os.stat(huge).st_blocks * 512, MIB, "the file was meant to take no room")
        done = self.cluster.run("submit", "--working-dir", self.project, "--", "./tool")
        self.assertEqual(done.code, 1, done)
        for words in ("500 MiB", "data (501 MiB)", ".rayctlignore"):
            self.assertIn(words, done.err)
        self.assertEqual(self.cluster.json("list", "jobs")["jobs"], [])
        self.assertEqual(os.listdir(self.head_store()), [])
        self.write(".rayctlignore", "data/\n")
        self.assertEqual(self.cluster.run("submit", "--working-dir", self.project, "--", "./tool").code, 0)

    def test_what_cannot_go_along_is_refused_by_name(self):
        os.symlink("/etc/passwd", os.path.join(self.project, "pkg", "out"))
        done = self.cluster.run("submit", "--working-dir", self.project, "--", "./tool")
        self.assertEqual(done.code, 1, done)
        self.assertIn("pkg/out", done.err)
        missing = self.cluster.run("submit", "--working-dir", self.project + "-not", "--", "./tool")
        self.assertEqual(missing.code, 2, missing)
        self.assertIn("no such folder", missing.err)


class ScriptTest(ClusterTest):
    flags = ("--num-cpus", "1")

    def test_a_script_runs_in_its_folder_with_its_own_arguments_and_takes_no_cpu(self):
        folder = tempfile.mkdtemp(dir=self.cluster.folder)
        with open(os.path.join(folder, "drive.py"), "w", encoding="utf-8") as file:
            file.write("import helper, os, sys\nprint(helper.WORD, sys.argv[1:], os.environ['A'])\nsys.exit(7)\n")
        with open(os.path.join(folder, "helper.py"), "w", encoding="utf-8") as file:
            file.write("WORD = 'helped'\n")
        holder = self.cluster.submit("--", "sh", "-c", self.gated(ranks=1))
        self.ranks_run(holder, 1)
        done = self.cluster.run("submit", "--env", "A=b", os.path.join(folder, "drive.py"), "--name", "x", "--", "-y")
        self.assertEqual((done.code, done.out), (7, "helped ['--name', 'x', '--', '-y'] b\n"), done)
        spec = self.cluster.job(2)["spec"]
        self.assertEqual(spec["argv"], ["python3", "drive.py", "--name", "x", "--", "-y"])
        self.assertEqual(spec["scaling_config"]["resources_per_worker"]["CPU"], 0)
        self.steps.go("0")
        self.assertEqual(self.cluster.run("wait", holder).code, 0)

    def test_a_script_that_is_not_there_is_bad_usage(self):
        done = self.cluster.run("submit", "nowhere.py")
        self.assertEqual(done.code, 2, done)
        self.assertIn("nowhere.py: no such script", done.err)


if __name__ == "__main__":
    unittest.main()
