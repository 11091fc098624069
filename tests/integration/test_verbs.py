"""Words that are not of the everyday: Ray's names for the verbs, completion, YAML."""

import os
import subprocess
import unittest

from kit import RAYCTL, ClusterTest


class Verbs(ClusterTest):
    flags = ("--num-cpus", "2")

    def test_jobs_by_the_names_that_ray_gives_the_verbs(self):
        done = self.cluster.run("job", "submit", "--no-wait", "--name", "one", "--", "sh", "-c", "echo hi; exec sleep 60")
        self.assertEqual(done.code, 0, done)
        job = done.out.split()[-1]
        self.cluster.until_state(job, "RUNNING")
        self.assertEqual(self.cluster.json("job", "list"), self.cluster.json("list", "jobs"))
        self.assertEqual(self.cluster.json("job", "status", job)["name"], "one")
        self.assertEqual(self.cluster.run("job", "stop", job).code, 0)
        self.assertEqual(self.cluster.run("wait", job).code, 130)
        self.assertEqual(self.cluster.run("job", "logs", job).out, "hi\n")
        self.assertEqual(self.cluster.run("job", "frobnicate").code, 2)

    def test_yaml_has_the_fields_of_json(self):
        text = self.cluster.ok("status", "-o", "yaml").out
        for field in self.cluster.json("status"):
            self.assertRegex(text, rf'(?m)^"?{field}"?:')
        self.assertIn("alive", self.cluster.ok("list", "nodes", "-o", "yaml").out)

    def test_bash_completes_verbs_and_options(self):
        script = ('source <("$1" completion bash)\n'
                  'ask() { COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=(); _rayctl; echo "${COMPREPLY[*]}"; }\n'
                  'ask rayctl sub; ask rayctl submit --num; ask rayctl list no; ask rayctl token create --ro')
        env = {"PATH": os.path.dirname(RAYCTL) + ":" + os.environ.get("PATH", "/usr/bin:/bin"), "HOME": self.cluster.folder}
        done = subprocess.run(["bash", "--norc", "-c", script, "bash", RAYCTL], env=env, capture_output=True, text=True,
                              timeout=60, check=True)
        self.assertEqual(done.stdout.splitlines(), ["submit", "--num-workers", "nodes", "--role"], done)
        for shell in ("zsh", "fish"):
            self.assertIn("__complete", self.cluster.ok("completion", shell).out)


if __name__ == "__main__":
    unittest.main()
