"""The daemons as a service manager runs them: one process each, told of by sd_notify, ended by SIGTERM."""

import os
import signal
import socket
import subprocess
import unittest

from kit import DEADLINE_SECONDS, ClusterTest, wait_gone


class Service(ClusterTest):
    autostart = False

    def setUp(self):
        super().setUp()
        self.manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.manager.settimeout(DEADLINE_SECONDS)
        self.manager.bind(os.path.join(self.cluster.folder, "notify"))
        self.addCleanup(self.manager.close)
        self.services = {}
        self.addCleanup(self.end_services)

    def end_services(self):
        for service in self.services.values():
            service.kill()
            service.wait()

    def serve(self, daemon, *flags):
        """Runs one daemon as a unit does and waits until it says that it is ready."""
        env = {**self.cluster.env, "NOTIFY_SOCKET": self.manager.getsockname(), "INVOCATION_ID": "5f"}
        self.services[daemon] = subprocess.Popen(
            [self.cluster.program, "start", "--head", f"--become={daemon}", "--port", "0", "--dashboard-port", "0",
             "--state-dir", self.cluster.state, *flags], env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.assertEqual(self.manager.recv(4096), b"READY=1")
        self.cluster.find_address()
        return self.services[daemon].pid

    def refused(self, daemon, *flags):
        return self.cluster.run("start", "--head", f"--become={daemon}", "--state-dir", self.cluster.state, *flags,
                                address=False)

    def test_the_process_that_the_manager_started_is_the_daemon(self):
        self.assertIn("does not run yet", self.refused("agent").err)
        head = self.serve("head")
        agent = self.serve("agent", "--num-cpus", "2")
        self.assertEqual(self.cluster.daemons(), {"head": head, "agent": agent})
        again = self.refused("agent")
        self.assertEqual(again.code, 1, again)
        self.assertIn(str(agent), again.err)
        # What the manager says to its service is for that alone.
        done = self.cluster.ok("submit", "--", "sh", "-c", "echo $NOTIFY_SOCKET$INVOCATION_ID.")
        self.assertEqual(done.out, ".\n")
        stopped = self.cluster.run("stop", "--state-dir", self.cluster.state, address=False)
        self.assertEqual(stopped.code, 0, stopped)
        # Asked to end, they end well, so that the manager does not start them again.
        self.assertEqual([service.wait() for service in self.services.values()], [0, 0])
        self.assertEqual(self.cluster.left_behind(), [])

    def test_a_restart_of_the_services_leaves_ranks_running(self):
        self.serve("head")
        self.serve("agent", "--num-cpus", "2")
        job = self.cluster.submit("--", "sh", "-c", self.gated())
        (pid, attempt), = self.ranks_run(job, 1).values()
        for daemon in ("agent", "head"):
            self.services[daemon].send_signal(signal.SIGTERM)
            self.assertEqual(self.manager.recv(4096), b"STOPPING=1")
            self.assertEqual(self.services[daemon].wait(), 0)
        self.serve("head")
        self.serve("agent", "--num-cpus", "2")
        self.steps.go("0")
        self.assertEqual(self.cluster.ok("wait", job).code, 0)
        self.assertEqual((self.cluster.job(job)["attempt"], attempt), (0, 0))
        self.assertTrue(wait_gone(pid))

    def test_words_that_do_not_fit(self):
        for words in (["--head", "--become=shim"], ["--head", "--become=head", "--block"],
                      ["--address=127.0.0.1:1", "--become=head"]):
            done = self.cluster.run("start", *words, "--state-dir", self.cluster.state, address=False)
            self.assertEqual(done.code, 2, (words, done))
            self.assertIn("--become", done.err)


if __name__ == "__main__":
    unittest.main()
