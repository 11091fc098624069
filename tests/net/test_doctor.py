"""`rayctl doctor` on machines on which something is wrong: it names the thing and exits with 1, else with 0."""

import json
import os
import sys

from lab import HEAD_PORT, LabTest


class Doctor(LabTest):
    def setUp(self):
        super().setUp()
        self.a, self.b = self.lab.host("a"), self.lab.host("b")
        self.a.write("hosts", "127.0.0.1 localhost\n10.77.0.1 a\n")
        self.b.write("hosts", "127.0.0.1 localhost\n127.0.1.1 b\n10.77.0.1 a\n")
        self.a.start_head("--num-cpus", "1")
        self.b.env["RAYCTL_TOKEN"] = self.lab.admin_token

    def found(self, code, check, verdict, pattern, *args, host=None, **kwargs):
        done = (host or self.b).run("doctor", "-o", "json", *args, **kwargs)
        self.assertEqual(done.code, code, done)
        answer = json.loads(done.out)
        self.assertEqual(answer["ok"], code == 0)
        messages = [f["message"] for f in answer["findings"] if (f["check"], f["verdict"]) == (check, verdict)]
        self.assertTrue(messages, done)
        self.assertRegex("\n".join(messages), pattern)

    def test_all_is_well(self):
        self.found(0, "credentials", "ok", "takes this token", host=self.a)
        self.found(0, "clock", "ok", "within", "--address", f"a:{HEAD_PORT}")
        self.found(0, "host name", "ok", "harmless", "--address", f"a:{HEAD_PORT}")
        text = self.b.run("doctor", "--address", f"10.77.0.1:{HEAD_PORT}")
        self.assertEqual(text.code, 0, text)
        self.assertIn("is a head of this token's cluster", text.out)

    def test_what_stands_in_the_way(self):
        at = ("--address", f"10.77.0.1:{HEAD_PORT}")
        self.a.filter(f"iifname eth0 tcp dport {HEAD_PORT} drop")
        self.found(1, "head", "wrong", "firewall", *at)
        self.a.filter(f"iifname eth0 tcp dport {HEAD_PORT} reject with tcp reset")
        self.found(1, "head", "wrong", "refused", *at)
        self.a.heal()
        self.found(1, "head's name", "wrong", "this machine itself", "--address", f"b:{HEAD_PORT}")
        self.found(1, "head's name", "wrong", "not known", "--address", f"nowhere.invalid:{HEAD_PORT}")
        self.found(1, "credentials", "wrong", "wants a token", *at, env={"RAYCTL_TOKEN": ""})
        other = self.lab.admin_token[:-64] + "a" * 64
        self.found(1, "head", "wrong", "another cluster", *at, env={"RAYCTL_TOKEN": other})
        digit = "1" if self.lab.admin_token[4] == "0" else "0"
        wrong = f"rct_{digit}{self.lab.admin_token[5:]}"  # Of this cluster, with a secret that the head does not know.
        self.found(1, "credentials", "wrong", "token", *at, env={"RAYCTL_TOKEN": wrong})
        runtime = os.path.join(self.b.folder, "tmp", f"rayctl-{os.getuid()}")
        os.mkdir(runtime, 0o755)
        os.chmod(runtime, 0o755)
        self.found(1, "socket folder", "wrong", "chmod 700", *at)
        os.rmdir(runtime)
        self.found(0, "head", "ok", "open", *at)

    def test_without_a_head_only_this_machine_is_looked_at(self):
        self.found(0, "head", "warning", "none is named")


if __name__ == "__main__":
    sys.exit("run it by: python3 run.py test_doctor")
