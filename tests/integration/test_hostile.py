"""Ten programs that will not go: after their job has ended, after a cancel, and after their daemons were killed nothing
of them is left, and the job says how it ended. With cgroups where this machine has them for us, and without any.
"""

import os
import signal
import unittest

from kit import ClusterTest, processes, start_ticks, wait_gone

PROGRAMS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "hostile_programs.py")
PIDS_MAX = 48
MEMORY = 64 << 20
LOG_BYTES_MAX = 100 << 20
LOG_FILES = 5
# (state, reason, exit code) of each when it may end by itself.
DONE = ("SUCCEEDED", None, 0)
ENDS = {
    "fork_bomb": ("FAILED", "EXITED", 2),
    "double_fork": DONE,
    "new_session": DONE,
    "term_ignored": DONE,
    "flood": DONE,
    "no_newline": ("FAILED", "EXITED", 3),
    "closed_stdout": DONE,
    "child_outlives": DONE,
    "zombies": DONE,
    "memory_eater": ("FAILED", "OUT_OF_MEMORY", 137),
}


def marked(mark):
    """The processes that carry `mark` in their environment or their words, zombies left out."""
    found = []
    for pid, words in processes():
        try:
            with open(f"/proc/{pid}/environ", "rb") as environ:
                environment = environ.read().decode(errors="replace")
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            environment = ""
        if (mark in environment or any(mark in word for word in words)) and start_ticks(pid) is not None:
            found.append((pid, words))
    return found


def parent_of(pid):
    with open(f"/proc/{pid}/stat", encoding="utf-8") as stat:
        return int(stat.read().rsplit(")", 1)[1].split()[1])


def cgroups_left(folder_names):
    """cgroup folders of jobs on this machine that were not there before."""
    now = set()
    for base, folders, _ in os.walk("/sys/fs/cgroup"):
        now.update(os.path.join(base, name) for name in folders if name.startswith("rayctl-"))
    return now - folder_names


class Programs(ClusterTest):
    """What both ways share."""

    flags = ("--num-cpus", "8", "--pids-max", str(PIDS_MAX))
    prefix = ()

    def setUp(self):
        self.cgroups_before = cgroups_left(set())
        super().setUp()
        self.count = 0

    def start_cluster(self):
        self.cluster.prefix = list(self.prefix)
        self.cluster.start(*self.flags)

    autostart = False

    def begin(self, program, stays=False):
        """Submits it; gives the id and the mark that its processes carry."""
        self.count += 1
        mark = f"hostile_{os.getpid()}_{self.id().rsplit('.', 1)[1]}_{self.count}"
        path = os.path.join(self.cluster.folder, f"{program}.yaml")
        with open(path, "w", encoding="utf-8") as file:
            file.write(f"entrypoint: exec /usr/bin/python3 {PROGRAMS} {program}\n"
                       f"env_vars: {{HOSTILE_MARK: {mark}, HOSTILE_EVENTS: {self.steps.events_path}, "
                       f"HOSTILE_STAYS: '{1 if stays else ''}'}}\n"
                       "grace_period: 1s\nagent_grace: 1s\n")
            if program == "memory_eater" or stays:
                file.write(f"scaling_config: {{resources_per_worker: {{memory: {MEMORY}}}}}\n")
        return self.cluster.submit(path), mark

    def check_end(self, program, job, mark, expected):
        described = self.cluster.until_state(job, "SUCCEEDED", "FAILED", "CANCELLED")
        self.assertEqual(marked(mark), [], f"{program} left something behind")
        self.assertEqual((described["state"], described["reason"], described["exit_code"]), expected,
                         described["message"])
        return described

    def ends(self):
        return ENDS

    def all_after_their_end(self):
        described = {}
        for program, expected in self.ends().items():
            with self.subTest(program):
                job, mark = self.begin(program)
                self.assertEqual(self.steps.next(), ["ready", program])
                described[program] = self.check_end(program, job, mark, expected)
                if program == "flood":
                    self.check_flood(job)
        return described

    def all_after_cancel(self):
        for program in self.ends():
            if program == "memory_eater":
                continue  # It does not wait to be cancelled.
            with self.subTest(program):
                job, mark = self.begin(program, stays=True)
                self.assertEqual(self.steps.next(), ["ready", program])
                self.assertNotEqual(marked(mark), [])
                self.cluster.ok("cancel", job)
                self.check_end(program, job, mark, ("CANCELLED", "USER", 130))

    def all_after_agent_grace(self):
        for program in ("double_fork", "new_session"):
            with self.subTest(program):
                job, mark = self.begin(program, stays=True)
                self.assertEqual(self.steps.next(), ["ready", program])
                self.cluster.until_state(job, "RUNNING")
                self.cluster.kill("agent")
                for pid, _ in marked(mark):
                    self.assertTrue(wait_gone(pid), f"{program} outlives agent_grace")
                self.assertEqual(marked(mark), [])
                self.start_cluster()
                self.cluster.until(lambda: self.cluster.json("status")["nodes"]["alive"] == 1, "the node is back")

    def a_killed_shim(self, program):
        job, mark = self.begin(program, stays=True)
        self.assertEqual(self.steps.next(), ["ready", program])
        described = self.cluster.until_state(job, "RUNNING")
        shim = parent_of(described["workers"][0]["pid"])
        os.kill(shim, signal.SIGKILL)
        self.check_end(program, job, mark, ("FAILED", "NODE_LOST", 1))

    def a_killed_shim_and_agent(self, program):
        """Nobody is left to clean up until the next agent starts."""
        job, mark = self.begin(program, stays=True)
        self.assertEqual(self.steps.next(), ["ready", program])
        described = self.cluster.until_state(job, "RUNNING")
        shim = parent_of(described["workers"][0]["pid"])
        self.cluster.kill("agent")
        os.kill(shim, signal.SIGKILL)
        wait_gone(shim)
        left = marked(mark)
        self.start_cluster()
        for pid, _ in left:
            self.assertTrue(wait_gone(pid))
        self.check_end(program, job, mark, ("FAILED", "NODE_LOST", 1))

    def check_flood(self, job):
        folder = os.path.join(self.cluster.state, "jobs", str(job), "logs", "attempt_0")
        size = sum(os.path.getsize(os.path.join(folder, name)) for name in os.listdir(folder) if "idx" not in name)
        self.assertLessEqual(size, LOG_BYTES_MAX * LOG_FILES)
        self.assertGreater(size, LOG_BYTES_MAX)


@unittest.skipUnless(os.geteuid() == 0 and os.path.isdir("/sys/fs/cgroup"), "only root has cgroups of its own here")
class WithCgroups(Programs):
    def setUp(self):
        super().setUp()
        self.start_cluster()
        node = self.cluster.json("list", "nodes")["nodes"][0]
        if node["remarks"]:
            self.skipTest(f"this machine lacks something: {node['remarks']}")
        self.addCleanup(self.check_cgroups)

    def check_cgroups(self):
        self.assertEqual(cgroups_left(self.cgroups_before), set(), "cgroups were left behind")

    def test_nothing_is_left_after_the_end(self):
        described = self.all_after_their_end()
        self.assertIn(f"limit of {PIDS_MAX} processes", described["fork_bomb"]["message"])
        # The kernel lets the one that it ends go a little over its limit.
        self.assertRegex(described["memory_eater"]["message"], r"ran out of memory: used [67]\d(\.\d)? MiB of 64 MiB$")

    def test_nothing_is_left_after_cancel(self):
        self.all_after_cancel()

    def test_nothing_is_left_after_agent_grace(self):
        self.all_after_agent_grace()

    def test_the_agent_ends_what_a_killed_shim_left(self):
        for program in ("double_fork", "new_session"):
            with self.subTest(program):
                self.a_killed_shim(program)

    def test_the_next_agent_ends_what_a_killed_shim_and_agent_left(self):
        self.a_killed_shim_and_agent("new_session")

    def test_a_sigkill_of_its_own_is_no_lack_of_memory(self):
        job = self.cluster.submit("--memory", "64MiB", "--", "sh", "-c", "kill -9 $$")
        described = self.cluster.until_state(job, "FAILED")
        self.assertEqual((described["reason"], described["exit_code"]), ("SIGNALED", 137))


class WithoutCgroups(Programs):
    # Root has them taken away; another user has none on most machines.
    prefix = ("unshare", "--mount", "sh", "-c", 'umount -R /sys/fs/cgroup && exec "$@"', "sh")
    if os.geteuid() != 0 or not os.path.isdir("/sys/fs/cgroup"):
        prefix = ()

    def setUp(self):
        super().setUp()
        self.start_cluster()
        if not self.cluster.json("list", "nodes")["nodes"][0]["remarks"]:
            self.skipTest("this user has cgroups of its own")

    def ends(self):
        return {**ENDS, "memory_eater": DONE}  # Nobody ends it, and the node says so.

    def test_nothing_is_left_after_the_end(self):
        described = self.all_after_their_end()
        self.assertEqual(described["fork_bomb"]["message"].count("limit of"), 0)
        node = self.cluster.json("list", "nodes")["nodes"][0]
        self.assertIn("memory requests are accounted for, but not enforced here", " ".join(node["remarks"]))
        self.assertIn("not enforced here", self.cluster.ok("status", "-v").out)

    def test_nothing_is_left_after_cancel(self):
        self.all_after_cancel()

    def test_nothing_is_left_after_agent_grace(self):
        self.all_after_agent_grace()

    def test_the_agent_ends_what_a_killed_shim_left(self):
        self.a_killed_shim("double_fork")

    def test_the_next_agent_ends_what_a_killed_shim_and_agent_left(self):
        self.a_killed_shim_and_agent("double_fork")


if __name__ == "__main__":
    unittest.main()
