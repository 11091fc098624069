"""More than one node, all on this machine: each with an agent, a state folder and a name of its own."""

import os
import signal
import unittest

from kit import ClusterTest, start_ticks, wait_gone


class Nodes(ClusterTest):
    def agent_pid(self, state):
        from kit import processes
        return next(pid for pid, words in processes() if len(words) > 1 and words[1] == "agent" and state in words)

    def test_a_gang_spans_nodes_with_one_rank_numbering(self):
        self.cluster.join("second", "--num-cpus", "8")
        status = self.cluster.json("status")
        self.assertEqual(status["nodes"]["alive"], 2)
        line = ('echo "r $RANK $LOCAL_RANK $NODE_RANK $GROUP_WORLD_SIZE $LOCAL_WORLD_SIZE $MASTER_ADDR:$MASTER_PORT" > '
                + self.steps.events_path)
        path = os.path.join(self.cluster.folder, "job.yaml")
        with open(path, "w", encoding="utf-8") as file:
            file.write(f"entrypoint: '{line}'\nscaling_config: {{num_workers: 4, placement_strategy: SPREAD}}\n")
        job = self.cluster.submit(path)
        said = [self.steps.next()[1:] for _ in range(4)]
        self.assertEqual(self.cluster.run("wait", job).code, 0)
        self.assertEqual(sorted(int(w[0]) for w in said), [0, 1, 2, 3])
        self.assertEqual({(int(w[2]), int(w[1])) for w in said}, {(0, 0), (0, 1), (1, 0), (1, 1)})
        self.assertEqual({(w[3], w[4]) for w in said}, {("2", "2")})
        self.assertEqual(len({w[5] for w in said}), 1)
        self.assertEqual(len(self.cluster.job(job)["nodes"]), 2)

    def test_names_are_made_unique(self):
        self.cluster.join("twin", "--num-cpus", "1")
        self.cluster.ok("list", "nodes")
        state = os.path.join(self.cluster.folder, "state-other")
        done = self.cluster.run("start", "--address", self.cluster.address, "--token-file",
                                self.cluster.started["token_file"], "--node-name", "twin", "--state-dir", state,
                                address=False)
        self.cluster.agents.append(state)
        self.assertEqual(done.code, 0, done)
        names = [node["name"] for node in self.cluster.json("list", "nodes")["nodes"]]
        self.assertEqual(len(names), len(set(names)))
        self.assertEqual(len(names), 3)

    def test_a_stopped_node_gives_its_gang_to_another_without_a_failure(self):
        state = self.cluster.join("second", "--num-cpus", "16")
        job = self.cluster.submit("--cpus", "8", "--num-workers", "2", "--", "sh", "-c", self.gated())
        first = self.ranks_said(2)
        where = self.cluster.job(job)["nodes"]
        self.assertEqual(where, ["second"])
        self.cluster.ok("stop", "--state-dir", state, address=False)
        for pid, _ in first.values():
            self.assertIsNone(start_ticks(pid))
        now = self.cluster.job(job)
        self.assertEqual((now["failures"], now["state"]), (0, "RECOVERING"))
        self.cluster.join("third", "--num-cpus", "16")
        again = self.ranks_said(2)
        self.assertEqual({attempt for _, attempt in again.values()}, {1})
        for rank in range(2):
            self.steps.go(str(rank))
        self.assertEqual(self.cluster.run("wait", job).code, 0)
        self.assertEqual(self.cluster.job(job)["failures"], 0)

    def test_a_stalled_agent_is_suspected_only(self):
        state = self.cluster.join("second", "--num-cpus", "16")
        job = self.cluster.submit("--cpus", "16", "--", "sh", "-c", self.gated())
        self.ranks_run(job, 1)
        pid = self.agent_pid(state)
        os.kill(pid, signal.SIGSTOP)
        self.cluster.until(lambda: self.cluster.json("status")["nodes"]["suspect"] == 1, "suspect")
        self.assertEqual(self.cluster.job(job)["state"], "RUNNING")
        os.kill(pid, signal.SIGCONT)
        self.cluster.until(lambda: self.cluster.json("status")["nodes"]["alive"] == 2, "alive again")
        self.steps.go("0")
        self.assertEqual(self.cluster.run("wait", job).code, 0)
        self.assertEqual(self.cluster.job(job)["attempt"], 0)


class Grace(ClusterTest):
    def test_ranks_of_an_agent_that_does_not_come_back_are_gone_after_agent_grace(self):
        path = os.path.join(self.cluster.folder, "job.yaml")
        with open(path, "w", encoding="utf-8") as file:
            file.write("agent_grace: 1s\ngrace_period: 1s\nentrypoint: |\n  " + self.gated() + "\n")
        self.cluster.submit(path)
        (pid, _), = self.ranks_said(1).values()
        self.cluster.kill("agent")
        self.assertIsNotNone(start_ticks(pid))
        self.assertTrue(wait_gone(pid, 30))


if __name__ == "__main__":
    unittest.main()
