"""`rayctl run`: a private cluster for one job, which is gone after its client however that ends."""

import os
import signal
import subprocess
import unittest

from kit import ClusterTest, processes, runtime_dirs, wait_gone

# A rank that ignores SIGTERM and has a child that left its session and closed its descriptors.
STUBBORN = """
trap '' TERM
setsid sh -c 'exec <&- >&- 2>&-; echo child $$ > %(events)s; exec sleep 1000' &
echo rank $$ > %(events)s
while :; do sleep 1000; done
"""


class Run(ClusterTest):
    autostart = False

    def setUp(self):
        super().setUp()
        self.cluster.env["TMPDIR"] = self.cluster.folder

    def run_job(self, *words):
        return self.cluster.run("run", "--num-cpus", "4", *words, address=False)

    def popen(self, *words):
        client = self.cluster.popen("run", "--num-cpus", "4", *words)
        self.addCleanup(client.communicate)
        self.addCleanup(client.kill)
        return client

    def folders(self):
        return [name for name in os.listdir(self.cluster.folder) if name.startswith("rayctl-run-")]

    def daemon(self, verb):
        pid, = [pid for pid, words in processes()
                if words[1:2] == [verb] and any(self.cluster.folder in word for word in words)]
        return pid

    def assert_nothing_left(self):
        self.assertEqual(self.cluster.left_behind(), [])
        self.assertEqual(self.folders(), [])
        self.assertEqual([name for name in runtime_dirs() - self.before
                          if self.cluster.folder in self.runtime_owner(name)], [])

    def assert_all_goes(self):
        """Whatever still runs of it ends by itself, and takes its folders along."""
        for pid, _ in self.cluster.left_behind():
            self.assertTrue(wait_gone(pid), pid)
        self.cluster.until(lambda: not self.folders(), "the folder of the run is removed")
        self.assert_nothing_left()

    def test_output_and_code_are_the_jobs_and_nothing_stays(self):
        for code in (0, 7):
            done = self.run_job("--", "sh", "-c", f"echo $WORLD_SIZE; exit {code}")
            self.assertEqual((done.code, done.out), (code, "1\n"), done)
            self.assert_nothing_left()

    def test_a_script_with_its_folder(self):
        folder = os.path.join(self.cluster.folder, "project")
        os.mkdir(folder)
        with open(os.path.join(folder, "helper.py"), "w", encoding="utf-8") as file:
            file.write("WORD = 'helped'\n")
        with open(os.path.join(folder, "main.py"), "w", encoding="utf-8") as file:
            file.write("import sys, helper\nprint(helper.WORD, sys.argv[1:])\n")
        done = self.run_job(os.path.join(folder, "main.py"), "--num-workers", "3")
        self.assertEqual((done.code, done.out), (0, "helped ['--num-workers', '3']\n"), done)
        self.assert_nothing_left()

    def test_what_it_could_never_run_is_refused(self):
        done = self.run_job("--cpus", "5", "--", "true")
        self.assertEqual(done.code, 1, done)
        self.assertIn("CPU", done.err)
        self.assert_nothing_left()

    def test_nobody_takes_it_for_their_cluster(self):
        client = self.popen("--", "sh", "-c", f"echo up > {self.steps.events_path}; exec sleep 1000")
        self.assertEqual(self.steps.next(), ["up"])
        with open(f"/proc/{self.daemon('agent')}/cmdline", encoding="utf-8") as cmdline:
            words = cmdline.read().split("\0")
        address = words[words.index("--address") + 1]
        # Other clusters of this user may be here, and may be found.
        done = self.cluster.run("status", address=False)
        self.assertNotIn(address, done.out + done.err)
        self.assertEqual(self.cluster.run("status", "--address", address, address=False).code, 0)
        client.kill()
        client.wait()
        self.assert_all_goes()

    def test_a_killed_client_takes_everything_along(self):
        client = self.popen("--", "sh", "-c", STUBBORN % {"events": self.steps.events_path})
        said = dict([self.steps.next(), self.steps.next()])
        client.kill()
        client.wait()
        for pid in said.values():
            self.assertTrue(wait_gone(int(pid)), said)
        self.assert_all_goes()

    def test_ctrl_c_cancels_and_the_rank_may_say_goodbye(self):
        client = self.popen("--", "sh", "-c",
                            f"trap 'echo goodbye; exit 3' TERM; echo up > {self.steps.events_path}; "
                            "while :; do sleep 0.01; done")
        self.assertEqual(self.steps.next(), ["up"])
        client.send_signal(signal.SIGINT)
        out, err = client.communicate()
        self.assertEqual((client.returncode, out), (130, "goodbye\n"), err)
        self.assert_nothing_left()

    def test_a_second_ctrl_c_does_not_wait(self):
        client = self.popen("--", "sh", "-c", STUBBORN % {"events": self.steps.events_path})
        self.steps.next()
        self.steps.next()
        client.send_signal(signal.SIGINT)
        self.assertIn("Ctrl-C again", client.stderr.readline())
        client.send_signal(signal.SIGINT)
        self.assertEqual(client.wait(), 130)
        self.assert_all_goes()

    def test_a_daemon_that_ends_ends_the_run(self):
        for verb in ("head", "agent"):
            client = self.popen("--", "sh", "-c", STUBBORN % {"events": self.steps.events_path})
            self.steps.next()
            self.steps.next()
            os.kill(self.daemon(verb), signal.SIGKILL)
            _, err = client.communicate()
            self.assertEqual(client.returncode, 1, err)
            self.assertIn(f"the {verb} of this run has ended", err)
            self.assert_all_goes()

    def test_words_that_do_not_fit(self):
        for words, said in ((["--"], "rayctl run"), ([], "rayctl run"), (["nothere.yaml"], "nothere.yaml"),
                            (["--no-wait", "--", "true"], "no-wait"), (["--num-cpus", "many", "--", "true"], "num-cpus")):
            done = self.cluster.run("run", *words, address=False)
            self.assertEqual(done.code, 2, (words, done))
            self.assertIn(said, done.err)
        self.assert_nothing_left()


if __name__ == "__main__":
    unittest.main()
