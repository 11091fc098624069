"""GPUs by NVML: a library with its binary interface stands for the driver, and tells what a file says."""

import os
import signal
import unittest

from kit import BIN, ClusterTest, wait_gone

NVML = os.path.join(BIN, "..", "tests", "nvml")
FIRST = "gpu GPU-aaaa 1b 85899345920 NVIDIA H100 80GB HBM3\n"
SECOND = "gpu GPU-bbbb 43 85899345920 NVIDIA H100 80GB HBM3\n"


class Devices(ClusterTest):
    autostart = False

    def setUp(self):
        super().setUp()
        self.file = os.path.join(self.cluster.folder, "nvml")
        self.cluster.env.update(LD_LIBRARY_PATH=NVML, RAYCTL_TEST_NVML=self.file)
        self.cluster.env.pop("CUDA_VISIBLE_DEVICES", None)

    def tell(self, text):
        with open(self.file + ".new", "w", encoding="utf-8") as file:
            file.write(text)
        os.rename(self.file + ".new", self.file)

    def start(self, text, *flags, **env):
        self.tell(text)
        self.cluster.env.update(env)
        self.cluster.start("--num-cpus", "8", *flags)

    def devices(self):
        return self.cluster.json("list", "nodes")["nodes"][0]["devices"]

    def until_problem(self, index, said):
        """`said` empty: the device has none any more."""
        def check():
            problem = self.devices()[index]["problem"]
            return (problem is None) if not said else (problem and said in problem)

        self.cluster.until(check, f"device {index} says {said!r}")

    def test_found_named_and_shown_to_the_rank_that_has_them(self):
        self.start(FIRST + SECOND)
        self.assertEqual([(d["vendor"], d["id"], d["name"]) for d in self.devices()],
                         [("nvidia", "GPU-aaaa", "NVIDIA H100 80GB HBM3"), ("nvidia", "GPU-bbbb", "NVIDIA H100 80GB HBM3")])
        self.assertEqual(self.cluster.json("list", "nodes")["nodes"][0]["labels"]["accelerator_type"], "H100")
        done = self.cluster.run("submit", "--gpus", "1", "--num-workers", "2", "--", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES")
        self.assertEqual(sorted(done.out.splitlines()), ["[rank 0] GPU-aaaa", "[rank 1] GPU-bbbb"], done)

    def test_flags_and_variables_say_how_many(self):
        self.start(FIRST + SECOND, CUDA_VISIBLE_DEVICES="1")
        self.assertEqual([device["id"] for device in self.devices()], ["GPU-bbbb"])
        self.cluster.stop()
        del self.cluster.env["CUDA_VISIBLE_DEVICES"]
        self.cluster.start("--num-cpus", "8", "--num-gpus", "1")
        self.assertEqual([device["id"] for device in self.devices()], ["GPU-aaaa"])
        self.cluster.stop()
        self.cluster.start("--num-cpus", "8", "--num-gpus", "0")
        self.assertEqual(self.devices(), [])

    def test_a_device_that_a_process_still_holds_is_fenced_until_it_is_gone(self):
        self.start(FIRST)
        self.until_problem(0, "")
        job = self.cluster.submit("--gpus", "1", "--", "sh", "-c", self.gated(ranks=1))
        (pid, _), = self.ranks_run(job, 1).values()
        self.tell(FIRST + f"process {pid}\n")  # As it is: the rank's own.
        stranger = self.cluster.submit("--gpus", "1", "--", "sh", "-c", self.gated(ranks=1))
        self.tell(FIRST + f"process {os.getpid()}\n")
        self.steps.go("0")
        self.cluster.ok("wait", job)
        self.assertTrue(wait_gone(pid))
        self.until_problem(0, f"held by process {os.getpid()}")
        self.assertEqual(self.cluster.job(stranger)["state"], "QUEUED")
        self.assertIn("held by process", self.cluster.ok("status", "-v").out)
        self.tell(FIRST)
        self.ranks_run(stranger, 1)
        self.steps.go("0")
        self.cluster.ok("wait", stranger)

    def test_a_sick_device_is_not_lent_and_comes_back(self):
        self.start(FIRST + SECOND + "rows 1 0\n")
        self.until_problem(1, "rows of its memory wait to be remapped")
        done = self.cluster.run("submit", "--gpus", "1", "--", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES")
        self.assertEqual(done.out, "GPU-aaaa\n", done)
        self.tell(FIRST + SECOND)
        self.until_problem(1, "")

    def test_a_driver_that_hangs_keeps_nothing_else_waiting(self):
        pipe = os.path.join(self.cluster.folder, "hang")
        os.mkfifo(pipe)
        self.start(FIRST + f"hang {pipe}\n")
        self.assertIsNotNone(self.devices()[0]["problem"])
        done = self.cluster.run("submit", "--", "echo", "hi")
        self.assertEqual(done.out, "hi\n", done)
        self.tell(FIRST)
        with open(pipe, "w", encoding="utf-8") as wake:
            wake.write("x")
        self.until_problem(0, "")


if __name__ == "__main__":
    unittest.main()
