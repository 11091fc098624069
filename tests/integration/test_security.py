import json
import os
import shutil
import socket
import ssl
import stat
import subprocess
import tempfile
import unittest

from kit import RAYCTL, ClusterTest, Result

NOBODY = "rct_" + "ab" * 32


class Security(ClusterTest):
    def stranger(self, *args, token=None):
        """Runs rayctl from another home, with nothing but a token."""
        home = os.path.join(self.cluster.folder, "stranger")
        os.makedirs(home, exist_ok=True)
        env = {"HOME": home}
        if token:
            env["RAYCTL_TOKEN"] = token
        return self.cluster.run(*args, env=env)

    def own_token(self):
        host, port = self.cluster.address.rsplit(":", 1)
        with open(os.path.join(self.cluster.home, ".rayctl", f"{host}_{port}", "token"), encoding="utf-8") as file:
            return file.read().strip()

    def test_plain_text_and_noise_are_refused_and_the_head_lives(self):
        host, port = self.cluster.address.rsplit(":", 1)
        for noise in (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"\x00" * 4096,
                      b"\x16\x03\x01\xff\xff" + b"A" * 2000):
            with socket.create_connection((host, int(port)), timeout=20) as link:
                link.sendall(noise)
                link.shutdown(socket.SHUT_WR)
                answer = b""
                try:
                    while chunk := link.recv(4096):
                        answer += chunk
                except ConnectionError:
                    pass
                self.assertNotIn(b"200", answer)
        self.assertEqual(self.cluster.ok("status").code, 0)

    def test_the_server_shows_the_name_that_clients_check(self):
        host, port = self.cluster.address.rsplit(":", 1)
        folder = os.path.join(self.cluster.home, ".rayctl", f"{host}_{port}")
        context = ssl.create_default_context(cafile=os.path.join(folder, "ca.pem"))
        context.set_alpn_protocols(["h2"])
        with socket.create_connection((host, int(port)), timeout=20) as link:
            with context.wrap_socket(link, server_hostname="rayctl-head") as tls:
                self.assertIn(tls.version(), ("TLSv1.2", "TLSv1.3"))
        with socket.create_connection((host, int(port)), timeout=20) as link:
            with self.assertRaises(ssl.SSLError):
                ssl.create_default_context().wrap_socket(link, server_hostname="rayctl-head")

    @unittest.skipUnless(os.geteuid() == 0, "becomes another user")
    def test_no_token_is_refused_and_says_how_to_get_one(self):
        # The same user on this machine needs no token, so this is asked by another one: with a program of its own, for a
        # stranger may not look into the folder of a checkout.
        env = {"PATH": os.environ.get("PATH", ""), "HOME": "/nonexistent"}
        with tempfile.TemporaryDirectory(prefix="rayctl-test-") as folder:
            os.chmod(folder, 0o755)
            program = shutil.copy(RAYCTL, folder)
            done = Result(subprocess.run([program, "status", "--address", self.cluster.address], user=65534,
                                         group=65534, extra_groups=[], env=env, cwd="/", capture_output=True, text=True,
                                         timeout=60, check=False))
        self.assertEqual(done.code, 1, done)
        self.assertIn("token", done.err)

    def test_a_wrong_token_is_refused(self):
        ca = self.own_token().rsplit("_", 1)[1]
        done = self.stranger("status", token=f"{NOBODY}_{ca}")
        self.assertEqual(done.code, 1, done)
        self.assertIn("token", done.err)

    def test_a_token_of_another_cluster_is_refused_before_it_is_sent(self):
        done = self.stranger("status", token=f"{NOBODY}_{'cd' * 32}")
        self.assertEqual(done.code, 1, done)

    def test_a_viewer_looks_but_does_not_submit(self):
        secret = json.loads(self.cluster.ok("token", "create", "--role", "viewer", "--name", "eve", "-o", "json").out)
        token = secret["token"] if isinstance(secret.get("token"), str) else secret["secret"]
        self.assertEqual(self.stranger("status", token=token).code, 0)
        self.assertEqual(self.stranger("list", "jobs", token=token).code, 0)
        for words in (["submit", "--", "true"], ["cancel", "1"], ["token", "list"]):
            done = self.stranger(*words, token=token)
            self.assertEqual(done.code, 1, (words, done))
            self.assertIn("viewer", done.err)
        self.assertEqual(self.cluster.json("list", "jobs"), {"jobs": []})

    def test_a_user_cancels_only_their_own_jobs(self):
        tokens = {}
        for name in ("ann", "bob"):
            created = self.cluster.json("token", "create", "--role", "user", "--name", name)
            tokens[name] = created["token"] if isinstance(created.get("token"), str) else created["secret"]
        done = self.stranger("submit", "--no-wait", "--", "sh", "-c", self.gated(), token=tokens["ann"])
        self.assertEqual(done.code, 0, done)
        self.ranks_said(1)
        self.assertEqual(self.cluster.job(1)["user"], "ann")
        self.assertEqual(self.stranger("cancel", "1", token=tokens["bob"]).code, 1)
        self.assertEqual(self.stranger("cancel", "1", token=tokens["ann"]).code, 0)
        self.cluster.run("wait", 1)

    def test_a_revoked_token_is_refused(self):
        created = self.cluster.json("token", "create", "--role", "user", "--name", "gone")
        token = created["token"] if isinstance(created.get("token"), str) else created["secret"]
        self.assertEqual(self.stranger("status", token=token).code, 0)
        self.cluster.ok("token", "revoke", "gone")
        self.assertEqual(self.stranger("status", token=token).code, 1)

    def test_a_person_cannot_join_a_node_and_a_join_token_cannot_submit(self):
        with open(self.cluster.started["token_file"], encoding="utf-8") as file:
            join = file.read().strip()
        self.assertEqual(self.stranger("submit", "--", "true", token=join).code, 1)
        created = self.cluster.json("token", "create", "--role", "user", "--name", "u")
        token = created["token"] if isinstance(created.get("token"), str) else created["secret"]
        state = os.path.join(self.cluster.folder, "state-x")
        done = self.cluster.run("start", "--address", self.cluster.address, "--token", token, "--node-name", "x",
                                "--state-dir", state, address=False)
        self.assertEqual(done.code, 1, done)
        self.assertEqual(self.cluster.json("status")["workers"]["total"], 1)

    def test_secrets_on_disk_are_for_their_owner_only(self):
        for folder, _, names in os.walk(self.cluster.home):
            for name in names:
                if name in ("token",):
                    self.assertEqual(stat.S_IMODE(os.stat(os.path.join(folder, name)).st_mode) & 0o077, 0, name)
        for folder, _, names in os.walk(self.cluster.state):
            for name in names:
                if name.endswith((".key", "-token")):
                    self.assertEqual(stat.S_IMODE(os.stat(os.path.join(folder, name)).st_mode) & 0o077, 0, name)
        self.assertEqual(stat.S_IMODE(os.stat(f"/tmp/rayctl-{os.getuid()}").st_mode), 0o700)
        secret = self.own_token().split("_")[1]
        with open(os.path.join(self.cluster.state, "head", "journal.db"), "rb") as journal:
            bytes_ = journal.read()
        self.assertNotIn(secret.encode(), bytes_)
        self.assertNotIn(bytes.fromhex(secret), bytes_)


class Insecure(ClusterTest):
    autostart = False

    def test_insecure_is_loopback_only(self):
        done = self.cluster.run("start", "--head", "--insecure", "--host", "0.0.0.0", "--port", "0", "--state-dir",
                                self.cluster.state, address=False)
        self.assertNotEqual(done.code, 0, done)
        self.cluster.start("--num-cpus", "2", "--insecure")
        self.assertTrue(self.cluster.address.startswith("127.0.0.1:"), self.cluster.address)
        self.assertEqual(self.cluster.run("submit", "--", "echo", "hi").out, "hi\n")


if __name__ == "__main__":
    unittest.main()
