"""`rayctl logs` and its options over real daemons, retention, and `--watch`."""

import json
import os
import pty
import select
import signal
import subprocess
import time
import unittest

from kit import DEADLINE_SECONDS, RAYCTL, ClusterTest


class Logs(ClusterTest):
    def test_ranks_come_in_order_of_time_and_options_choose_among_them(self):
        # Each rank writes after the one before, round by round, so there is one right order.
        line = ('for round in 1 2; do read w < {folder}/gate_$RANK; echo "out $RANK.$round"; echo "err $RANK.$round" >&2; '
                'echo "said" > {events}; done').format(folder=self.steps.folder, events=self.steps.events_path)
        for rank in range(3):
            self.steps.gate(str(rank))
        job = self.cluster.submit("--num-workers", "3", "--", "sh", "-c", line)
        for _ in (1, 2):
            for rank in range(3):
                self.steps.go(str(rank))
                self.steps.next()
        self.assertEqual(self.cluster.run("wait", job).code, 0)
        rounds = [(rank, number) for number in (1, 2) for rank in range(3)]
        logs = self.cluster.ok("logs", job)
        self.assertEqual(logs.out, "".join(f"[rank {r}] out {r}.{n}\n" for r, n in rounds))
        self.assertEqual(logs.err, "".join(f"[rank {r}] err {r}.{n}\n" for r, n in rounds))
        only = self.cluster.ok("logs", job, "--stderr", "--rank", "1", "--rank", "2", "--grep", r"\.2$")
        self.assertEqual((only.out, only.err), ("", "[rank 1] err 1.2\n[rank 2] err 2.2\n"))
        only = self.cluster.ok("logs", job, "--stdout", "--grep", "err")
        self.assertEqual((only.out, only.err), ("", ""))
        both = self.cluster.ok("logs", job, "--stdout", "--stderr", "--since", "1h", "--attempt", "0")
        self.assertEqual((both.out, both.err), (logs.out, logs.err))

    def test_since_begins_where_it_says(self):
        line = f'echo early; read w < {self.steps.gate("0")}; date -u +%Y-%m-%dT%H:%M:%S.%NZ > {self.steps.events_path}; ' \
               f'read w < {self.steps.gate("0")}; echo late'
        job = self.cluster.submit("--", "sh", "-c", line)
        self.cluster.until(lambda: self.cluster.run("logs", job).out == "early\n", "it has written")
        self.steps.go("0")
        between = self.steps.next()[0]
        self.steps.go("0")
        self.assertEqual(self.cluster.run("wait", job).code, 0)
        self.assertEqual(self.cluster.ok("logs", job, "--since", between).out, "late\n")
        self.assertEqual(self.cluster.ok("logs", job, "--since", "1h").out, "early\nlate\n")
        self.assertEqual(self.cluster.ok("logs", job, "--since", "2100-01-01T00:00:00Z").out, "")

    def test_what_there_is_not_is_refused_in_a_sentence(self):
        job = self.cluster.submit("--num-workers", "2", "--", "true")
        self.assertEqual(self.cluster.run("wait", job).code, 0)
        name = self.cluster.json("list", "nodes")["nodes"][0]["name"]
        for options, code, words in [
                (("--rank", "99"), 1, "has no rank 99; it has ranks 0 to 1"),
                (("--attempt", "5"), 1, "has had no attempt 5"),
                (("--node", "nowhere"), 1, f'there is no node named "nowhere"; there is {name}'),
                (("--grep", "("), 2, "missing )"),
                (("--grep", ""), 2, "empty"),
                (("--since", "yesterday"), 2, "expected a duration such as 30s")]:
            done = self.cluster.run("logs", job, *options)
            self.assertEqual((done.code, done.out), (code, ""), done)
            self.assertIn(words, done.err)
            self.assertEqual(done.err.count("\n"), 1, done)
        self.assertEqual(self.cluster.ok("logs", job, "--node", name, "--rank", "0").err, "")

    def test_attempts_keep_their_own_output(self):
        job = self.cluster.submit("--max-failures", "2", "--", "sh", "-c", 'echo "try $RAYCTL_ATTEMPT"; [ $RAYCTL_ATTEMPT = 2 ]')
        self.assertEqual(self.cluster.run("wait", job).code, 0)
        self.assertEqual(self.cluster.ok("logs", job).out, "try 2\n")
        for attempt in range(3):
            self.assertEqual(self.cluster.ok("logs", job, "--attempt", attempt).out, f"try {attempt}\n")
        self.assertEqual(self.cluster.ok("logs", "-f", job, "--attempt", "1", "--grep", "try").out, "try 1\ntry 2\n")

    def test_a_follower_sees_each_line_once_over_restarts_and_rotation(self):
        line = (f'n=0; while read w < {self.steps.gate("0")}; do [ "$w" = end ] && break; n=$((n + 1)); echo "line $n"; '
                f'echo skipped >&2; done')
        job = self.cluster.submit("--", "sh", "-c", line)
        self.cluster.until_state(job, "RUNNING")
        follower = self.cluster.popen("logs", "-f", job, "--grep", "^line")
        self.addCleanup(lambda: [stream.close() for stream in (follower.stdout, follower.stderr)])
        self.steps.go("0")
        self.assertEqual(follower.stdout.readline(), "line 1\n")
        self.cluster.kill("agent")
        self.steps.go("0")
        self.cluster.start()
        self.assertEqual(follower.stdout.readline(), "line 2\n")
        port = self.cluster.address.rsplit(":", 1)[1]
        self.cluster.kill("head")
        self.steps.go("0")
        self.cluster.ok("start", "--head", "--port", port, "--dashboard-port", "0", "--state-dir", self.cluster.state,
                        "--num-cpus", "8", address=False)
        self.assertEqual(follower.stdout.readline(), "line 3\n")
        os.write(self.steps.gates["0"], b"end\n")
        out, err = follower.communicate(timeout=DEADLINE_SECONDS)
        self.assertEqual((out, follower.returncode), ("", 0), err)
        self.assertEqual(self.cluster.ok("logs", job, "--stdout").out, "line 1\nline 2\nline 3\n")

    def test_readers_that_stand_still_never_hold_up_a_rank(self):
        size = 30 << 20
        job = self.cluster.submit("--", "sh", "-c",
                                  f'read w < {self.steps.gate("0")}; head -c {size} /dev/zero | tr "\\0" x; echo; echo needle')
        self.cluster.until_state(job, "RUNNING")
        still = [self.cluster.popen("logs", "-f", job, *options) for options in ((), ("--grep", "x"), ("--stdout",))]
        needle = self.cluster.popen("logs", "-f", job, "--grep", "^needle$")
        for reader in still:  # They are connected, and from here on nobody reads what they print.
            self.addCleanup(reader.communicate)
            self.addCleanup(reader.kill)
        self.steps.go("0")
        self.assertEqual(self.cluster.run("wait", job).code, 0)
        out, err = needle.communicate(timeout=DEADLINE_SECONDS)
        self.assertEqual((out, needle.returncode), ("needle\n", 0), err)
        count = subprocess.run(f'"{RAYCTL}" logs {job} | wc -c', shell=True, capture_output=True, text=True, check=True,
                               timeout=DEADLINE_SECONDS, env=dict(self.cluster.env, RAYCTL_ADDRESS=self.cluster.address))
        self.assertEqual(int(count.stdout), size + len("\nneedle\n"))


class TwoNodes(ClusterTest):
    flags = ("--num-cpus", "1")

    def test_one_node_alone_and_all_in_order(self):
        self.cluster.join("second", "--num-cpus", "1")
        self.steps.gate("0"), self.steps.gate("1")
        line = f'read w < {self.steps.folder}/gate_$RANK; echo "rank $RANK"; echo said > {self.steps.events_path}'
        job = self.cluster.submit("--num-workers", "2", "--", "sh", "-c", line)
        for rank in (1, 0):
            self.steps.go(str(rank))
            self.steps.next()
        self.assertEqual(self.cluster.run("wait", job).code, 0)
        self.assertEqual(self.cluster.ok("logs", job).out, "[rank 1] rank 1\n[rank 0] rank 0\n")
        where = {w["rank"]: w["node"] for w in self.cluster.json("describe", job)["workers"]}
        self.assertEqual(len(set(where.values())), 2)
        for rank, node in where.items():
            self.assertEqual(self.cluster.ok("logs", job, "--node", node).out, f"[rank {rank}] rank {rank}\n")
        done = self.cluster.run("logs", job, "--node", where[0], "--rank", "1")
        self.assertEqual((done.code, done.out), (1, ""), done)
        self.assertIn(f"it was on {where[1]}", done.err)


class Retention(ClusterTest):
    flags = ("--num-cpus", "2", "--logs-max", "3MiB")

    def folder(self, job):
        return os.path.join(self.cluster.state, "jobs", str(job))

    def wait_until(self, condition, what):
        """The node looks at its disk now and then; what it does there shows in the file system alone."""
        self.cluster.until(lambda: self.cluster.ok("status") and condition(), what)

    def test_old_logs_make_room_and_are_missed_in_words(self):
        write = "head -c 2000000 /dev/zero | tr '\\0' x"
        jobs = []
        for _ in range(2):
            jobs.append(self.cluster.submit("--", "sh", "-c", write))
            self.assertEqual(self.cluster.run("wait", jobs[-1]).code, 0)
        living = self.cluster.submit("--", "sh", "-c", f'{write}; read w < {self.steps.gate("0")}')
        self.wait_until(lambda: not any(os.path.exists(self.folder(job)) for job in jobs), "the old logs are gone")
        self.assertEqual(len(self.cluster.ok("logs", living).out), 2000000)
        self.assertTrue(os.path.isdir(os.path.join(self.folder(living), "work")))
        for options in ((), ("-f",)):
            gone = self.cluster.ok("logs", *options, jobs[0])
            self.assertEqual(gone.out, "")
            self.assertIn(f"no log is kept of rank 0 of attempt 0 of job {jobs[0]}", gone.err)
        self.steps.go("0")
        self.assertEqual(self.cluster.run("wait", living).code, 0)

    def test_of_a_crash_loop_the_newest_attempts_stay(self):
        failures = 60
        job = self.cluster.submit("--max-failures", failures, "--", "sh", "-c", "echo $RAYCTL_ATTEMPT; exit 1")
        self.assertEqual(self.cluster.run("wait", job).code, 1)
        logs = os.path.join(self.folder(job), "logs")
        self.wait_until(lambda: len(os.listdir(logs)) <= 50, "the oldest attempts are gone")
        self.assertEqual(self.cluster.ok("logs", job).out, f"{failures}\n")
        gone = self.cluster.ok("logs", job, "--attempt", "0")
        self.assertIn(f"no log is kept of rank 0 of attempt 0 of job {job}", gone.err)


class Watch(ClusterTest):
    flags = ("--num-cpus", "2")

    def watch(self, *words):
        watching = self.cluster.popen(*words)
        self.addCleanup(lambda: [stream.close() for stream in (watching.stdout, watching.stderr)])
        return watching

    def interrupt(self, watching):
        watching.send_signal(signal.SIGINT)
        watching.communicate(timeout=DEADLINE_SECONDS)
        self.assertEqual(watching.returncode, 130)

    def test_json_is_one_object_a_line(self):
        watching = self.watch("list", "jobs", "--watch", "0.1", "-o", "json")
        self.assertEqual(json.loads(watching.stdout.readline()), {"jobs": []})
        job = self.cluster.submit("--", "sh", "-c", f'read w < {self.steps.gate("0")}')
        seen = json.loads(watching.stdout.readline())
        while not seen["jobs"]:
            seen = json.loads(watching.stdout.readline())
        self.assertEqual(seen["jobs"][0]["id"], job)
        self.steps.go("0")
        while seen["jobs"][0]["state"] != "SUCCEEDED":
            seen = json.loads(watching.stdout.readline())
        self.interrupt(watching)

    def test_words_on_a_pipe_are_set_apart_by_an_empty_line(self):
        watching = self.watch("list", "--watch=0.1", "nodes")
        first = [watching.stdout.readline() for _ in range(2)]
        self.assertTrue(first[0].startswith("ID"), first)
        self.assertEqual(watching.stdout.readline(), "\n")
        self.assertEqual(watching.stdout.readline(), first[0])
        self.interrupt(watching)

    def test_who_stops_reading_ends_it(self):
        watching = self.cluster.popen("status", "--watch", "0.1")
        self.assertNotEqual(watching.stdout.readline(), "")
        watching.stdout.close()
        watching.wait(timeout=DEADLINE_SECONDS)
        watching.stderr.close()
        self.assertEqual(watching.returncode, 0)

    def test_a_head_that_comes_back_is_shown_again(self):
        port = self.cluster.address.rsplit(":", 1)[1]
        watching = self.watch("status", "--watch", "0.1", "-o", "json")
        started = json.loads(watching.stdout.readline())["started_at"]
        self.cluster.kill("head")
        self.assertIn("waiting for it", watching.stderr.readline())
        self.cluster.ok("start", "--head", "--port", port, "--dashboard-port", "0", "--state-dir", self.cluster.state,
                        "--num-cpus", "2", address=False)
        while json.loads(watching.stdout.readline())["started_at"] == started:
            pass
        self.interrupt(watching)

    def test_a_terminal_is_drawn_anew_in_place(self):
        master, slave = pty.openpty()
        self.addCleanup(os.close, master)
        env = dict(self.cluster.env, RAYCTL_ADDRESS=self.cluster.address)
        watching = subprocess.Popen([RAYCTL, "status", "--watch", "0.1"], env=env, stdout=slave, stderr=slave,
                                    stdin=subprocess.DEVNULL, cwd=self.cluster.folder)
        os.close(slave)
        text = b""
        end = time.monotonic() + DEADLINE_SECONDS
        while text.count(b"\x1b[H") < 3:
            self.assertTrue(select.select([master], [], [], max(0.0, end - time.monotonic()))[0], "nothing is drawn")
            text += os.read(master, 65536)
        self.assertIn(b"every 0.1 s", text)
        self.assertIn(b"Workers: Ready", text)
        watching.send_signal(signal.SIGINT)
        self.assertEqual(watching.wait(timeout=DEADLINE_SECONDS), 130)

    def test_wrong_intervals_are_bad_usage(self):
        for interval in ("0", "0.01", "2 parsecs"):
            done = self.cluster.run("status", "--watch", interval)
            self.assertEqual(done.code, 2, done)


if __name__ == "__main__":
    unittest.main()
