import os
import signal
import socket
import unittest

from kit import ClusterTest, start_ticks


class StartStop(ClusterTest):
    autostart = False

    def test_start_prints_where_and_how_to_join_and_stop_leaves_nothing(self):
        done = self.cluster.run("start", "--head", "--port", "0", "--dashboard-port", "0", "--state-dir",
                                self.cluster.state, address=False)
        self.assertEqual(done.code, 0, done)
        lines = dict(line.split(": ", 1) for line in done.out.splitlines() if ": " in line)
        self.assertIn("address", lines)
        self.assertTrue(lines["dashboard"].startswith("http"), done)
        self.assertRegex(lines["join"], r"^rayctl start --address=\S+:\d+ --token-file=\S+$")
        status = self.cluster.run("status")
        self.assertEqual(status.code, 0, status)
        for line in ("Nodes: 1", "Workers: Ready"):
            self.assertIn(line, status.out)
        stopped = self.cluster.run("stop", "--state-dir", self.cluster.state, address=False)
        self.assertEqual(stopped.code, 0, stopped)
        self.assertEqual(self.cluster.left_behind(), [])

    def test_status_json_has_the_fields_of_the_contract(self):
        self.cluster.start()
        status = self.cluster.json("status")
        self.assertEqual(sorted(status), sorted(["address", "version", "started_at", "nodes", "resources", "workers",
                                                 "jobs", "waiting"]))
        self.assertEqual(status["nodes"], {"alive": 1, "suspect": 0, "draining": 0, "dead": 0})
        self.assertEqual(status["workers"], {"ready": 1, "total": 1})
        self.assertEqual(status["resources"]["CPU"], {"total": 8, "used": 0})

    def test_a_second_start_is_refused_and_the_first_lives_on(self):
        self.cluster.start()
        before = self.cluster.daemons()
        again = self.cluster.run("start", "--head", "--port", "0", "--state-dir", self.cluster.state, address=False)
        self.assertEqual(again.code, 1, again)
        self.assertIn(str(before["head"]), again.err)
        self.assertEqual(self.cluster.daemons(), before)

    def test_a_missing_daemon_is_started_again(self):
        self.cluster.start()
        head = self.cluster.daemons()["head"]
        self.cluster.kill("agent")
        again = self.cluster.run("start", "--head", "--port", "0", "--dashboard-port", "0", "--state-dir",
                                 self.cluster.state, address=False)
        self.assertEqual(again.code, 0, again)
        self.assertEqual(self.cluster.daemons()["head"], head)
        self.cluster.until(lambda: self.cluster.json("status")["workers"] == {"ready": 1, "total": 1}, "agent is back")

    def test_a_taken_port_names_the_flag_and_leaves_nothing(self):
        with socket.socket() as taken:
            taken.bind(("0.0.0.0", 0))
            taken.listen()
            port = taken.getsockname()[1]
            done = self.cluster.run("start", "--head", "--port", port, "--dashboard-port", "0", "--state-dir",
                                    self.cluster.state, address=False)
        self.assertEqual(done.code, 1, done)
        self.assertIn("--port", done.err)
        self.assertIn(str(port), done.err)
        self.assertEqual(self.cluster.left_behind(), [])

    def test_stop_with_nothing_running_is_fine(self):
        done = self.cluster.run("stop", "--state-dir", self.cluster.state, address=False)
        self.assertEqual(done.code, 0, done)

    def test_stop_cancels_what_runs_and_keeps_what_waits(self):
        self.cluster.start("--num-cpus", "1")
        running = self.cluster.submit("--", "sh", "-c", self.gated())
        (pid, _), = self.ranks_said(1).values()
        waiting = self.cluster.submit("--", "echo", "later")
        self.assertEqual(self.cluster.job(waiting)["state"], "QUEUED")
        stopped = self.cluster.run("stop", "--state-dir", self.cluster.state, address=False)
        self.assertEqual(stopped.code, 0, stopped)
        self.assertIsNone(start_ticks(pid))
        self.cluster.start("--num-cpus", "1")
        job = self.cluster.job(running)
        self.assertEqual((job["state"], job["reason"], job["exit_code"]), ("CANCELLED", "CLUSTER_STOPPED", 130))
        self.assertEqual(self.cluster.ok("wait", waiting).code, 0)
        self.assertEqual(self.cluster.job(waiting)["state"], "SUCCEEDED")

    def test_an_unreachable_head_is_exit_code_3(self):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            address = "127.0.0.1:%d" % free.getsockname()[1]
        done = self.cluster.run("status", "--address", address, env={"RAYCTL_TOKEN": "rct_" + "0" * 64 + "_" + "0" * 64})
        self.assertEqual(done.code, 3, done)
        self.assertIn(address, done.err)

    def test_bad_usage_is_exit_code_2(self):
        for words in (["sttaus"], ["status", "--no-such-option"], ["submit"], ["wait"], ["list", "cheese"]):
            done = self.cluster.run(*words, address=False)
            self.assertEqual(done.code, 2, (words, done))
            self.assertNotEqual(done.err, "")

    def test_block_stays_until_interrupted(self):
        starter = self.cluster.popen("start", "--head", "--port", "0", "--dashboard-port", "0", "--state-dir",
                                     self.cluster.state, "--block")
        line = starter.stdout.readline()
        self.assertTrue(line.startswith("address: "), line)
        self.cluster.address = line.split(": ")[1].strip()
        self.assertIn("Nodes: 1", self.cluster.ok("status").out)
        starter.send_signal(signal.SIGINT)
        starter.communicate(timeout=60)
        self.assertEqual(self.cluster.left_behind(), [])

    def test_fresh_moves_the_old_state_aside(self):
        self.cluster.start()
        job = self.cluster.submit("--", "true")
        self.cluster.ok("wait", job)
        self.cluster.stop()
        self.cluster.start("--num-cpus", "8", "--fresh")
        self.assertEqual(self.cluster.json("list", "jobs"), {"jobs": []})
        self.assertTrue([n for n in os.listdir(self.cluster.folder) if n.startswith("state.")],
                        os.listdir(self.cluster.folder))


if __name__ == "__main__":
    unittest.main()
