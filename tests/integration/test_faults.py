"""State that is lost, damaged, full or of another cluster."""

import contextlib
import os
import shutil
import signal
import sqlite3
import unittest

from kit import Cluster, ClusterTest, processes, start_ticks, wait_gone


def agent_of(state):
    """The pid of the agent that runs on this state folder."""
    for pid, words in processes():
        if len(words) > 1 and os.path.basename(words[0]) == "rayctl" and words[1] == "agent" and state in words:
            return pid
    return None


class TwoClusters(ClusterTest):
    """A node that leaves its cluster for another one, with the state folder that it had."""

    flags = ("--num-cpus", "2")

    def setUp(self):
        super().setUp()
        self.other = Cluster(start=False)
        self.addCleanup(self.other.remove)
        self.addCleanup(self.other.stop)
        self.other.start("--num-cpus", "2")
        self.state = self.cluster.join("wanderer", "--num-cpus", "2", "--resources", "here=1")

    def run_there(self, cluster, *words):
        return cluster.run("submit", "--resources", "here=1", "--", *words)

    def leave_a_running_rank(self):
        """A job of the first cluster runs on the node, whose agent is gone."""
        job = self.cluster.submit("--resources", "here=1", "--", "sh", "-c",
                                  "echo of-the-first; touch file-of-the-first; " + self.gated(ranks=1))
        pid, _ = self.ranks_run(job, 1)[0]
        agent = agent_of(self.state)
        os.kill(agent, signal.SIGKILL)
        wait_gone(agent)
        return job, pid

    def start(self, cluster, token_of):
        return cluster.run("start", "--address", cluster.address, "--token-file", token_of.started["token_file"],
                           "--node-name", "wanderer", "--num-cpus", "2", "--resources", "here=1", "--state-dir",
                           self.state, address=False)

    def test_a_job_of_the_new_cluster_sees_nothing_of_the_old_one_with_its_id(self):
        job, pid = self.leave_a_running_rank()
        moved = self.start(self.other, self.other)
        self.assertEqual(moved.code, 0, f"{moved!r}\n{self.cluster.logs()}")
        self.assertTrue(wait_gone(pid), "a rank of the cluster that was left runs on")
        done = self.run_there(self.other, "sh", "-c", "ls -A; echo of-the-second")
        self.assertEqual((done.code, done.out), (0, "of-the-second\n"), done)
        self.assertEqual(self.other.job(job)["name"], "sh-1")
        self.assertEqual(self.other.ok("logs", job).out, "of-the-second\n")

    def test_a_token_of_another_cluster_ends_nothing(self):
        job, pid = self.leave_a_running_rank()
        wrong = self.start(self.cluster, self.other)
        self.assertEqual(wrong.code, 1, wrong)
        self.assertIn("another cluster than the token", wrong.err)
        self.assertIsNotNone(start_ticks(pid), "a wrong token has ended a rank")
        again = self.start(self.cluster, self.cluster)
        self.assertEqual(again.code, 0, again)
        self.steps.go("0")
        self.cluster.ok("wait", job)
        self.assertEqual(self.cluster.job(job)["attempt"], 0)


class LostJournal(ClusterTest):
    flags = ("--num-cpus", "1")

    def start(self, *flags):
        return self.cluster.run("start", "--head", "--port", "0", "--dashboard-port", "0", "--state-dir",
                                self.cluster.state, "--num-cpus", "1", *flags, address=False)

    def assert_refused(self, done):
        self.assertEqual(done.code, 1, done)
        self.assertIn("is missing or empty", done.err)
        self.assertIn("another --state-dir", done.err)
        self.assertEqual(self.cluster.daemons(), {})

    @staticmethod
    def empty(path):
        with contextlib.closing(sqlite3.connect(path)) as database, database:
            database.execute("DELETE FROM records")

    def lose_in_every_way(self, *flags):
        head_dir = os.path.join(self.cluster.state, "head")
        journal = os.path.join(head_dir, "journal.db")
        for lose in (os.unlink, lambda path: os.truncate(path, 0), self.empty):
            os.rename(journal, journal + ".kept")
            shutil.copy(journal + ".kept", journal)
            lose(journal)
            self.assert_refused(self.start(*flags))
            self.assertEqual([name for name in os.listdir(head_dir) if name.startswith("journal.db-")], [])
            os.rename(journal + ".kept", journal)
        again = self.start(*flags)
        self.assertEqual(again.code, 0, again)

    def test_is_not_taken_for_a_new_cluster(self):
        self.cluster.ok("submit", "--", "true")
        self.cluster.stop()
        self.lose_in_every_way()
        self.cluster.find_address()
        self.assertEqual(self.cluster.job(1)["state"], "SUCCEEDED")
        self.cluster.stop()
        shutil.rmtree(os.path.join(self.cluster.state, "head"))
        begun = self.start()
        self.assertEqual(begun.code, 0, begun)

    def test_nor_where_nobody_has_run_anything_yet(self):
        self.cluster.stop()
        self.lose_in_every_way()

    def test_nor_without_certificates(self):
        self.cluster.stop()
        shutil.rmtree(self.cluster.state)
        self.assertEqual(self.start("--insecure").code, 0)
        self.cluster.stop()
        self.lose_in_every_way("--insecure")


class DamagedIdentity(ClusterTest):
    """An agent whose certificate, key or CA is not what it was."""

    flags = ("--num-cpus", "1")

    def start(self, state, *flags):
        return self.cluster.run("start", "--address", self.cluster.address, "--node-name", "b", "--num-cpus", "1",
                                "--state-dir", state, *flags, address=False)

    def test_joins_anew_with_a_token_and_is_the_node_that_it_was(self):
        state = self.cluster.join("b", "--num-cpus", "1")
        token = ("--token-file", self.cluster.started["token_file"])
        before = self.cluster.json("describe", "b")["id"]
        for name in ("node.pem", "node.key", "ca.pem"):
            self.cluster.run("stop", "--state-dir", state, address=False)
            with open(os.path.join(state, "agent", name), "w", encoding="utf-8") as file:
                file.write("garbage\n")
            without = self.start(state)
            self.assertEqual(without.code, 1, (name, without))
            self.assertIn("damaged", without.err)
            self.assertIn("--token-file", without.err)
            done = self.start(state, *token)
            self.assertEqual(done.code, 0, (name, done))
            self.assertEqual(self.cluster.json("describe", "b")["id"], before)


if __name__ == "__main__":
    unittest.main()
