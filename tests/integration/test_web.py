"""The REST API on 8265: who may read what, over real sockets, and that it says what the command line says."""

import http.client
import json
import os
import socket
import ssl
import subprocess
import sys
import unittest
import urllib.parse

from kit import ClusterTest


class Web(ClusterTest):
    def setUp(self):
        super().setUp()
        self.url = urllib.parse.urlsplit(self.cluster.started["dashboard_url"])

    def ask(self, path, method="GET", **fields):
        link = http.client.HTTPConnection(self.url.hostname, self.url.port, timeout=20)
        try:
            link.request(method, path, headers={k.replace("_", "-"): v for k, v in fields.items()})
            answer = link.getresponse()
            return answer.status, answer.read().decode(), answer
        finally:
            link.close()

    def raw(self, request):
        with socket.create_connection((self.url.hostname, self.url.port), timeout=20) as link:
            link.sendall(request)
            answer = b""
            while chunk := link.recv(65536):
                answer += chunk
            return answer

    def test_it_says_what_the_command_line_says(self):
        job = self.cluster.submit("--name", "a job+", "--cpus", "1", "--", "true")
        self.cluster.ok("wait", job)
        for path, words in (("status", ["status"]), ("jobs", ["list", "jobs"]), ("nodes", ["list", "nodes"]),
                            (f"jobs/{job}", ["describe", job]), ("jobs/a%20job%2B", ["describe", "a job+"])):
            status, text, answer = self.ask(f"/api/v1/{path}")
            self.assertEqual(status, 200, text)
            self.assertEqual(answer.getheader("Content-Type"), "application/json")
            self.assertEqual(json.loads(text), self.cluster.json(*words), path)

    def test_what_there_is_not(self):
        for path in ("/", "/api/v1/", "/api/v1/nothing", "/api/v1/jobs/77", "/api/v1/jobs/no-such", "/healthz/x"):
            status, text, _ = self.ask(path)
            self.assertEqual(status, 404, path)
            self.assertIn("error", json.loads(text))
        status, text, answer = self.ask("/api/v1/jobs", method="POST", Authorization=f"Bearer {self.own_token()}")
        self.assertEqual((status, answer.getheader("Allow")), (405, "GET, HEAD"), text)
        status, text, answer = self.ask("/api/v1/status", method="HEAD")
        self.assertEqual((status, text), (200, ""))
        self.assertGreater(int(answer.getheader("Content-Length")), 2)

    def test_a_browser_that_is_led_here_reads_nothing(self):
        self.assertEqual(self.ask("/api/v1/status", Host="evil.example:8265")[0], 403)
        self.assertEqual(self.ask("/api/v1/status", Origin="http://evil.example")[0], 403)
        self.assertEqual(self.ask("/api/v1/status", Origin="null")[0], 403)
        self.assertEqual(self.ask("/healthz", Host="evil.example")[:2], (200, "ok"))

    def test_tokens(self):
        viewer = self.cluster.ok("token", "create", "--role", "viewer", "--name", "eve").out.strip()
        join = self.cluster.ok("token", "create", "--role", "join", "--name", "machine").out.strip()
        self.assertEqual(self.ask("/api/v1/jobs", Authorization=f"Bearer {viewer}")[0], 200)
        # A token opens also what a page of elsewhere could not, for a page of elsewhere does not have it.
        self.assertEqual(self.ask("/api/v1/jobs", Authorization=f"Bearer {viewer}", Host="gpu-1:8265")[0], 200)
        self.assertEqual(self.ask("/api/v1/jobs", Authorization=f"Bearer {join}")[0], 403)
        self.assertEqual(self.ask("/api/v1/jobs", Authorization="Basic eDp5")[0], 401)
        status, text, answer = self.ask("/api/v1/jobs", Authorization="Bearer rct_nonsense")
        self.assertEqual((status, answer.getheader("WWW-Authenticate")), (401, "Bearer"), text)
        self.cluster.ok("token", "revoke", "eve")
        self.assertEqual(self.ask("/api/v1/jobs", Authorization=f"Bearer {viewer}")[0], 401)

    @unittest.skipUnless(os.geteuid() == 0, "becomes another user")
    def test_another_user_of_this_machine_needs_a_token(self):
        script = (f"import http.client, sys\nlink = http.client.HTTPConnection('{self.url.hostname}', {self.url.port})\n"
                  "link.request('GET', sys.argv[1])\nprint(link.getresponse().status)\n")

        def stranger(path):
            done = subprocess.run([sys.executable, "-c", script, path], user=65534, group=65534, extra_groups=[],
                                  cwd="/", capture_output=True, text=True, timeout=60, check=True)
            return done.stdout.strip()

        self.assertEqual(stranger("/api/v1/status"), "401")
        self.assertEqual(stranger("/healthz"), "200")

    def test_hostile_requests_are_refused_and_the_head_lives(self):
        self.assertIn(b" 431 ", self.raw(b"GET / HTTP/1.1\r\nX: " + b"a" * 40000 + b"\r\n\r\n").split(b"\r\n")[0])
        self.assertIn(b" 400 ", self.raw(b"nonsense\r\n\r\n").split(b"\r\n")[0])
        self.assertIn(b" 413 ", self.raw(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 999999999\r\n\r\n").split(b"\r\n")[0])
        half = [socket.create_connection((self.url.hostname, self.url.port), timeout=20) for _ in range(20)]
        for link in half:
            link.sendall(b"GET /healthz HTTP/1.1\r\nHo")
        self.assertEqual(self.ask("/healthz")[:2], (200, "ok"))
        for link in half:
            link.close()

    def own_token(self):
        return self.cluster.ok("token", "create", "--role", "user").out.strip()


class WebElsewhere(ClusterTest):
    flags = ("--num-cpus", "1", "--dashboard-host", "0.0.0.0")

    def test_elsewhere_it_is_https_with_the_heads_certificate_and_wants_a_token(self):
        url = urllib.parse.urlsplit(self.cluster.started["dashboard_url"])
        self.assertEqual(url.scheme, "https")
        context = ssl.create_default_context(cafile=os.path.join(self.cluster.state, "head", "ca.pem"))
        context.check_hostname = False  # It is issued for the name rayctl-head, whatever the address.
        viewer = self.cluster.ok("token", "create", "--role", "viewer").out.strip()

        def ask(path, **fields):
            link = http.client.HTTPSConnection(url.hostname, url.port, timeout=20, context=context)
            try:
                link.request("GET", path, headers=fields)
                answer = link.getresponse()
                return answer.status, answer.read().decode()
            finally:
                link.close()

        self.assertEqual(ask("/healthz"), (200, "ok"))
        self.assertEqual(ask("/api/v1/status")[0], 401)
        status, text = ask("/api/v1/status", Authorization=f"Bearer {viewer}")
        self.assertEqual(status, 200)
        self.assertEqual(json.loads(text)["nodes"]["alive"], 1)


if __name__ == "__main__":
    unittest.main()
