"""kill -9 of a rank, of the agent and of the head in the middle of a 4-rank job, on real processes."""

import os
import signal
import unittest

from kit import ClusterTest, start_ticks, wait_gone


class Kills(ClusterTest):
    def begin(self, *options):
        job = self.cluster.submit("--num-workers", "4", *options, "--", "sh", "-c", self.gated('echo "done $RANK"'))
        return job, self.ranks_run(job, 4)

    def finish(self, job, code=0):
        for rank in range(4):
            self.steps.go(str(rank))
        done = self.cluster.run("wait", job)
        self.assertEqual(done.code, code, f"{done!r}\n{self.cluster.logs()}")
        return self.cluster.job(job)

    def test_a_killed_rank_restarts_the_gang_in_a_new_attempt(self):
        job, ranks = self.begin("--max-failures", "1")
        os.kill(ranks[2][0], signal.SIGKILL)
        again = self.ranks_run(job, 4)
        self.assertEqual({attempt for _, attempt in again.values()}, {1})
        for pid, _ in ranks.values():
            self.assertIsNone(start_ticks(pid), "a rank of the older attempt still runs")
        described = self.finish(job)
        self.assertEqual((described["state"], described["attempt"], described["failures"]), ("SUCCEEDED", 1, 1))

    def test_a_killed_rank_whose_children_had_to_be_ended_costs_one_attempt(self):
        for ranks in (1, 2):
            script = "sleep 1000 & " + self.gated("kill $!; exit 0", ranks=ranks)
            job = self.cluster.submit("--num-workers", ranks, "--max-failures", "9", "--", "sh", "-c", script)
            for attempt in range(2):
                said = self.ranks_run(job, ranks)
                self.assertEqual({number for _, number in said.values()}, {attempt})
                os.kill(said[0][0], signal.SIGKILL)
            said = self.ranks_run(job, ranks)
            for rank in range(ranks):
                self.steps.go(str(rank))
            self.cluster.ok("wait", job)
            described = self.cluster.job(job)
            self.assertEqual((described["state"], described["attempt"], described["failures"]), ("SUCCEEDED", 2, 2))

    def test_a_killed_rank_without_failures_left_fails_the_job_with_its_signal(self):
        job, ranks = self.begin()
        os.kill(ranks[2][0], signal.SIGKILL)
        done = self.cluster.run("wait", job)
        self.assertEqual(done.code, 128 + 9, done)
        described = self.cluster.job(job)
        self.assertEqual((described["state"], described["reason"]), ("FAILED", "SIGNALED"))
        self.assertIn("rank 2", described["message"])
        self.assertIn("SIGKILL", described["message"])
        for pid, _ in ranks.values():
            self.assertIsNone(start_ticks(pid))

    def test_ranks_go_on_without_their_agent_and_the_next_adopts_them(self):
        job, ranks = self.begin()
        self.cluster.kill("agent")
        self.cluster.until(lambda: self.cluster.json("status")["nodes"]["suspect"] == 1, "the node is suspect")
        started = self.cluster.run("start", "--head", "--port", "0", "--dashboard-port", "0", "--state-dir",
                                   self.cluster.state, address=False)
        self.assertEqual(started.code, 0, started)
        self.cluster.until(lambda: self.cluster.json("status")["nodes"]["alive"] == 1, "the node is alive")
        self.assertEqual(self.cluster.job(job)["state"], "RUNNING")
        workers = self.cluster.json("list", "workers")["workers"]
        self.assertEqual({w["rank"]: w["pid"] for w in workers}, {r: pid for r, (pid, _) in ranks.items()})
        described = self.finish(job)
        self.assertEqual((described["state"], described["attempt"]), ("SUCCEEDED", 0))

    def test_what_ended_while_the_agent_was_away_is_not_lost(self):
        job, ranks = self.begin()
        self.cluster.kill("agent")
        for rank in range(4):
            self.steps.go(str(rank))
        for pid, _ in ranks.values():
            wait_gone(pid)
        self.cluster.run("start", "--head", "--port", "0", "--dashboard-port", "0", "--state-dir", self.cluster.state,
                         address=False)
        done = self.cluster.run("wait", job)
        self.assertEqual(done.code, 0, f"{done!r}\n{self.cluster.logs()}")
        self.assertEqual(sorted(self.cluster.ok("logs", job).out.splitlines()),
                         [f"[rank {r}] done {r}" for r in range(4)])

    def test_ranks_go_on_without_their_head_and_the_next_knows_every_job(self):
        job, ranks = self.begin()
        finished = self.cluster.submit("--cpus", "0", "--", "true")
        self.cluster.ok("wait", finished)
        port = self.cluster.address.rsplit(":", 1)[1]
        self.cluster.kill("head")
        self.assertEqual(self.cluster.run("status").code, 3)
        for pid, _ in ranks.values():
            self.assertIsNotNone(start_ticks(pid))
        started = self.cluster.run("start", "--head", "--port", port, "--dashboard-port", "0", "--state-dir",
                                   self.cluster.state, address=False)
        self.assertEqual(started.code, 0, f"{started!r}\n{self.cluster.logs()}")
        self.assertEqual(self.cluster.job(finished)["state"], "SUCCEEDED")
        self.cluster.until(lambda: self.cluster.json("status")["nodes"]["alive"] == 1, "the agent is back")
        self.assertEqual(self.cluster.job(job)["state"], "RUNNING")
        workers = self.cluster.json("list", "workers")["workers"]
        self.assertEqual({w["rank"]: w["pid"] for w in workers}, {r: pid for r, (pid, _) in ranks.items()})
        described = self.finish(job)
        self.assertEqual((described["state"], described["attempt"]), ("SUCCEEDED", 0))

    def test_what_ended_while_the_head_was_away_is_not_lost(self):
        job, _ = self.begin()
        self.cluster.kill("head")
        for rank in range(4):
            self.steps.go(str(rank))
        # A port that was picked is picked again, or the agent would never find its head.
        self.cluster.run("start", "--head", "--port", "0", "--dashboard-port", "0", "--state-dir", self.cluster.state,
                         address=False)
        done = self.cluster.run("wait", job)
        self.assertEqual(done.code, 0, f"{done!r}\n{self.cluster.logs()}")

    def test_a_killed_shim_takes_its_ranks_along_and_the_job_restarts(self):
        job, ranks = self.begin("--max-failures", "1")
        with open(f"/proc/{ranks[0][0]}/stat", encoding="utf-8") as stat:
            shim = int(stat.read().rsplit(")", 1)[1].split()[1])
        with open(f"/proc/{shim}/cmdline", "rb") as cmdline:
            self.assertIn(b"rayctl-shim", cmdline.read())
        os.kill(shim, signal.SIGKILL)
        again = self.ranks_said(4)
        self.assertEqual({attempt for _, attempt in again.values()}, {1})
        for pid, _ in ranks.values():
            self.assertTrue(wait_gone(pid, 10))
        self.assertEqual(self.finish(job)["state"], "SUCCEEDED")


if __name__ == "__main__":
    unittest.main()
