import os
import signal
import subprocess
import unittest

from kit import RAYCTL, ClusterTest, start_ticks


class Jobs(ClusterTest):
    def run_line(self, *line, options=()):
        return self.cluster.run("submit", *options, "--", *line)

    def test_output_and_exit_code_are_those_of_the_command(self):
        done = self.run_line("sh", "-c", "echo hi; echo oops >&2; exit 3")
        self.assertEqual((done.code, done.out), (3, "hi\n"), done)
        self.assertIn("oops\n", done.err)

    def test_one_rank_is_byte_for_byte(self):
        path = os.path.join(self.cluster.folder, "noise")
        with open(path, "wb") as file:
            file.write(bytes(range(256)) * 4096 + b"no newline at the end")
        import subprocess
        from kit import RAYCTL
        env = dict(self.cluster.env, RAYCTL_ADDRESS=self.cluster.address)
        done = subprocess.run([RAYCTL, "submit", "--", "cat", path], env=env, capture_output=True, timeout=60,
                              check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        with open(path, "rb") as file:
            self.assertTrue(done.stdout == file.read(), "output differs")

    def test_more_ranks_are_prefixed_line_by_line(self):
        done = self.run_line("sh", "-c", "echo a $RANK; echo b $RANK", options=("--num-workers", "3"))
        self.assertEqual(done.code, 0, done)
        self.assertEqual(sorted(done.out.splitlines()),
                         sorted(f"[rank {r}] {w} {r}" for r in range(3) for w in "ab"))

    def test_a_signal_is_128_plus_its_number_and_said_in_words(self):
        done = self.run_line("sh", "-c", "kill -SEGV $$")
        self.assertEqual(done.code, 128 + 11, done)
        self.assertIn("SIGSEGV", done.err)
        job = self.cluster.job(1)
        self.assertEqual((job["state"], job["reason"], job["exit_code"]), ("FAILED", "SIGNALED", 139))

    def test_what_cannot_be_executed_is_126_or_127(self):
        done = self.run_line("no-such-program-anywhere")
        self.assertEqual(done.code, 127, done)
        self.assertIn("no such file", done.err.lower())
        path = os.path.join(self.cluster.folder, "plain")
        with open(path, "w", encoding="utf-8") as file:
            file.write("text")
        done = self.run_line(path)
        self.assertEqual(done.code, 126, done)
        self.assertEqual(self.cluster.job(2)["reason"], "START_FAILED")

    def test_the_environment_of_a_rank(self):
        done = self.run_line("env", options=("--num-workers", "1", "--env", "MINE=1 2", "--cpus", "2"))
        env = dict(line.split("=", 1) for line in done.out.splitlines() if "=" in line)
        want = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1", "NODE_RANK": "0",
                "GROUP_RANK": "0", "GROUP_WORLD_SIZE": "1", "ROLE_RANK": "0", "ROLE_WORLD_SIZE": "1",
                "MASTER_ADDR": "127.0.0.1", "TORCHELASTIC_RESTART_COUNT": "0", "TORCHELASTIC_MAX_RESTARTS": "0",
                "RAYCTL_JOB_ID": "1", "RAYCTL_ATTEMPT": "0", "RAYCTL_CONFIG": "{}", "OMP_NUM_THREADS": "2",
                "CUDA_VISIBLE_DEVICES": "", "TORCH_FR_BUFFER_SIZE": "200", "MINE": "1 2"}
        for name, value in want.items():
            self.assertEqual(env.get(name), value, name)
        for name in ("MASTER_PORT", "TORCHELASTIC_RUN_ID", "RAYCTL_SOCKET", "RAYCTL_RUN_DIR", "PATH"):
            self.assertTrue(env.get(name), name)
        self.assertNotIn("TORCHELASTIC_USE_AGENT_STORE", env)
        self.assertNotIn("RAYCTL_TOKEN", env)

    def test_gpus_are_lent_as_particular_devices(self):
        self.cluster.stop()
        self.cluster.start("--num-cpus", "8", "--num-gpus", "4")
        line = f'echo "gpus $CUDA_VISIBLE_DEVICES" > {self.steps.events_path}; read w < {self.steps.gate("g")}'
        jobs = [self.cluster.submit("--gpus", "2", "--", "sh", "-c", line) for _ in range(2)]
        seen = []
        for _ in jobs:
            seen += self.steps.next()[1].split(",")
        self.assertEqual(sorted(seen), ["0", "1", "2", "3"])
        third = self.cluster.submit("--gpus", "1", "--", "true")
        self.assertEqual(self.cluster.job(third)["state"], "QUEUED")
        for _ in jobs:
            self.steps.go("g")
        self.cluster.ok("wait", third)
        self.assertEqual(self.cluster.json("status")["resources"]["GPU"], {"total": 4, "used": 0})

    def test_a_gang_is_placed_whole_or_waits_with_a_reason(self):
        job = self.cluster.submit("--num-workers", "4", "--cpus", "2", "--", "sh", "-c", self.gated())
        self.ranks_said(4)
        late = self.cluster.submit("--num-workers", "2", "--cpus", "1", "--", "true")
        waiting = self.cluster.json("status")["waiting"]
        self.assertEqual([w["id"] for w in waiting], [late])
        self.assertIn("CPU", waiting[0]["reason"])
        for rank in range(4):
            self.steps.go(str(rank))
        self.cluster.ok("wait", job)
        self.cluster.ok("wait", late)

    def test_what_no_node_could_hold_is_accepted_with_a_remark_or_refused_by_wish(self):
        done = self.cluster.run("submit", "--no-wait", "--gpus", "64", "--", "true")
        self.assertEqual(done.code, 0, done)
        self.assertNotEqual(done.err, "")
        job = self.cluster.job(int(done.out.splitlines()[-1]))
        self.assertEqual((job["state"], job["reason"]), ("QUEUED", "INFEASIBLE"))
        refused = self.cluster.run("submit", "--fail-infeasible", "--gpus", "64", "--", "true")
        self.assertEqual(refused.code, 1, refused)
        self.cluster.ok("cancel", job["id"])
        self.assertEqual(self.cluster.job(job["id"])["state"], "CANCELLED")

    def test_restart_up_to_max_failures_then_the_first_cause(self):
        line = 'echo "try $RAYCTL_ATTEMPT"; [ $RAYCTL_ATTEMPT = 2 ]'
        done = self.run_line("sh", "-c", line, options=("--max-failures", "2"))
        self.assertEqual(done.code, 0, done)
        self.assertEqual(done.out, "try 0\ntry 1\ntry 2\n")
        job = self.cluster.job(1)
        self.assertEqual((job["attempt"], job["failures"], job["state"]), (2, 2, "SUCCEEDED"))
        done = self.run_line("sh", "-c", "exit 7", options=("--max-failures", "1"))
        self.assertEqual(done.code, 7, done)
        job = self.cluster.job(2)
        self.assertEqual((job["attempt"], job["failures"], job["reason"]), (1, 2, "EXITED"))

    def test_the_rank_that_failed_first_is_named_with_its_last_lines(self):
        # The peer is still there when rank 1 fails, and is stopped; what counts as a cause is tested on the head.
        line = 'if [ $RANK = 1 ]; then echo the real reason; exit 9; fi; ' + self.gated()
        job = self.cluster.submit("--num-workers", "2", "--", "sh", "-c", line)
        done = self.cluster.run("wait", job)
        self.assertEqual(done.code, 9, done)
        self.assertIn("rank 1", self.cluster.job(job)["message"])
        self.assertIn("the real reason", self.cluster.ok("describe", job).out.split("last lines of rank 1:")[1])

    def test_timeout_ends_the_job_with_124(self):
        done = self.run_line("sh", "-c", "exec sleep 600", options=("--timeout", "0.3s"))
        self.assertEqual(done.code, 124, done)
        self.assertEqual(self.cluster.job(1)["reason"], "TIMEOUT")

    def test_cancel_ends_ranks_with_grace_and_130(self):
        job = self.cluster.submit("--", "sh", "-c", self.gated())
        (pid, _), = self.ranks_said(1).values()
        self.cluster.ok("cancel", job)
        done = self.cluster.run("wait", job)
        self.assertEqual(done.code, 130, done)
        self.assertIsNone(start_ticks(pid))
        job = self.cluster.job(job)
        self.assertEqual((job["state"], job["reason"]), ("CANCELLED", "USER"))

    def test_wait_timeout_and_logs(self):
        job = self.cluster.submit("--num-workers", "2", "--", "sh", "-c", "echo out $RANK; " + self.gated("echo end"))
        self.ranks_said(2)
        self.assertEqual(self.cluster.run("wait", "--timeout", "0.1s", job).code, 124)
        follower = self.cluster.popen("logs", "-f", job, "--rank", "1")
        self.assertEqual(follower.stdout.readline(), "[rank 1] out 1\n")
        for rank in range(2):
            self.steps.go(str(rank))
        out, err = follower.communicate(timeout=60)
        self.assertEqual((out, follower.returncode), ("[rank 1] end\n", 0), err)
        logs = self.cluster.ok("logs", job)
        self.assertEqual(sorted(logs.out.splitlines()),
                         ["[rank 0] end", "[rank 0] out 0", "[rank 1] end", "[rank 1] out 1"])

    def test_ctrl_c_detaches_and_says_how_to_cancel(self):
        submit = self.cluster.popen("submit", "--", "sh", "-c", self.gated())
        self.ranks_run(1, 1)
        submit.send_signal(signal.SIGINT)
        _, err = submit.communicate(timeout=60)
        self.assertEqual(submit.returncode, 130, err)
        self.assertIn("rayctl cancel 1", err)
        self.assertEqual(self.cluster.job(1)["state"], "RUNNING")
        self.cluster.ok("cancel", 1)

    def test_a_job_file(self):
        path = os.path.join(self.cluster.folder, "job.yaml")
        with open(path, "w", encoding="utf-8") as file:
            file.write("name: pair\nentrypoint: echo \"$RANK of $WORLD_SIZE lr=$RAYCTL_CONFIG $EXTRA\"\n"
                       "env_vars: {EXTRA: \"x y\"}\ntrain_loop_config: {lr: 0.001, n: 3}\n"
                       "scaling_config: {num_workers: 2, resources_per_worker: {CPU: 1, memory: 64MiB}}\n"
                       "run_config: {failure_config: {max_failures: 1}}\ntimeout: 2h\n")
        done = self.cluster.run("submit", path)
        self.assertEqual(done.code, 0, done)
        self.assertEqual(len(done.out.splitlines()), 2)
        self.assertIn('0 of 2 lr={"lr": 0.001, "n": 3} x y', done.out)
        job = self.cluster.json("describe", "pair")
        self.assertEqual((job["name"], job["kind"], job["num_workers"]), ("pair", "train", 2))

    def test_a_wrong_job_file_is_refused_before_anything_is_sent(self):
        path = os.path.join(self.cluster.folder, "job.yaml")
        with open(path, "w", encoding="utf-8") as file:
            file.write("entrypoint: true\nscaling_config:\n  num_wrokers: 2\n")
        done = self.cluster.run("submit", path)
        self.assertEqual(done.code, 2, done)
        self.assertIn(f"{path}:3:3: scaling_config.num_wrokers", done.err)
        self.assertIn("did you mean num_workers", done.err)
        self.assertEqual(self.cluster.json("list", "jobs"), {"jobs": []})

    def test_options_that_mean_something_else_are_refused(self):
        for words, said in ((("--cpus", "1,FOO=1"), "--cpus: CPU: expected an amount"),
                            (("--cpus", ""), "--cpus"),
                            (("--memory", "1GiB,x=2"), "--memory: memory: "),
                            (("--timeout", "0"), "--timeout: expected more than 0")):
            with self.subTest(words=words):
                done = self.cluster.run("submit", *words, "--", "true")
                self.assertEqual(done.code, 2, done)
                self.assertIn(said, done.err)
        self.assertEqual(self.cluster.json("list", "jobs"), {"jobs": []})

    def test_a_full_disk_behind_stdout_changes_no_exit_code_of_a_job(self):
        for script, code in (("echo out", 0), ("echo out; exit 3", 3)):
            with open("/dev/full", "w", encoding="utf-8") as full:
                done = subprocess.run([RAYCTL, "submit", "--", "sh", "-c", script], stdout=full, stderr=subprocess.PIPE,
                                      env={**self.cluster.env, "RAYCTL_ADDRESS": self.cluster.address}, text=True,
                                      timeout=60, check=False)
            self.assertEqual(done.returncode, code, done.stderr)
            self.assertIn("stdout cannot be written", done.stderr)
        with open("/dev/full", "w", encoding="utf-8") as full:
            listed = subprocess.run([RAYCTL, "list", "jobs"], stdout=full, stderr=subprocess.PIPE, check=False,
                                    env={**self.cluster.env, "RAYCTL_ADDRESS": self.cluster.address}, timeout=60)
        self.assertEqual(listed.returncode, 1)

    def test_json_of_jobs_and_workers(self):
        job = self.cluster.submit("--name", "j", "--num-workers", "2", "--", "sh", "-c", self.gated())
        pids = {rank: pid for rank, (pid, _) in self.ranks_run(job, 2).items()}
        listed = self.cluster.json("list", "jobs")["jobs"][0]
        fields = ["id", "name", "kind", "state", "reason", "message", "exit_code", "user", "queue", "priority",
                  "attempt", "failures", "num_workers", "nodes", "path", "submitted_at", "started_at", "ended_at"]
        self.assertEqual(sorted(listed), sorted(fields))
        self.assertEqual((listed["reason"], listed["exit_code"], listed["ended_at"]), (None, None, None))
        workers = self.cluster.json("list", "workers")["workers"]
        self.assertEqual(sorted(workers[0]), sorted(["job_id", "attempt", "rank", "local_rank", "node", "pid", "state",
                                                     "exit_code", "signal"]))
        self.assertEqual({w["rank"]: w["pid"] for w in workers}, pids)
        self.cluster.ok("cancel", job)


class NoOrphans(ClusterTest):
    def test_children_that_outlive_their_rank_go_with_it(self):
        line = f'sh -c \'echo "child $$" > {self.steps.events_path}; exec sleep 1000\' & read w < {self.steps.gate("g")}'
        job = self.cluster.submit("--", "sh", "-c", line)
        child = int(self.steps.next()[1])
        self.steps.go("g")
        self.cluster.run("wait", job)
        self.cluster.until(lambda: start_ticks(child) is None, "the child is gone")


if __name__ == "__main__":
    unittest.main()
