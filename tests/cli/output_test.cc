#include "cli/output.h"

#include <catch2/catch.hpp>

#include "cli/render.h"

namespace rayctl::cli {
namespace {

TEST_CASE("columns are aligned and lines end without spaces", "[cli]") {
  Table table({{"ID", true}, {"NAME"}, {"STATE"}});
  table.AddRow({"7", "größe", "RUNNING"});
  table.AddRow({"12", "a", ""});
  CHECK(table.Text() ==
        "ID  NAME   STATE\n"
        " 7  größe  RUNNING\n"
        "12  a\n");
}

TEST_CASE("control characters of a foreign name do not reach the terminal", "[cli]") {
  CHECK(Printable("a\x1b[31mb\n") == "a?[31mb?");
}

TEST_CASE("a script in a job is described as its lines, a command as a shell takes it", "[cli]") {
  v1::Job job;
  job.mutable_spec()->set_entrypoint("echo a\n\tif true; then\n\x1b[31mb\n");
  std::string text = JobText(job, {});
  CHECK(text.find("entrypoint:\n  echo a\n  ?if true; then\n  ?[31mb\n") != std::string::npos);
  job.mutable_spec()->set_entrypoint("echo a\n");
  text = JobText(job, {});
  CHECK(text.find("entrypoint: echo a\n") != std::string::npos);
  job.mutable_spec()->clear_entrypoint();
  for (const char* const word : {"sh", "-c", "echo it's; echo b", "--lr=0.1", ""}) {
    job.mutable_spec()->add_argv(word);
  }
  text = JobText(job, {});
  CHECK(text.find("command: sh -c 'echo it'\\''s; echo b' --lr=0.1 ''\n") != std::string::npos);
}

v1::GetStatusResponse FourNodes() {
  v1::GetStatusResponse status;
  status.set_workers_ready(4);
  status.set_workers_total(4);
  (*status.mutable_nodes())["alive"] = 4;
  (*status.mutable_resources())["CPU"].set_total(128);
  (*status.mutable_resources())["GPU"].set_total(32);
  return status;
}

TEST_CASE("status in words has the lines that people grep for", "[cli]") {
  CHECK(StatusText(FourNodes(), false) == "Nodes: 4\nCPUs: 0/128\nGPUs: 0/32\nWorkers: Ready\nJobs: none\n");
}

TEST_CASE("status in words says which nodes are missing and what waits", "[cli]") {
  v1::GetStatusResponse status = FourNodes();
  status.set_workers_ready(3);
  (*status.mutable_nodes())["alive"] = 3;
  (*status.mutable_nodes())["suspect"] = 1;
  (*status.mutable_resources())["CPU"].set_used(2.5);
  (*status.mutable_jobs())["RUNNING"] = 1;
  (*status.mutable_jobs())["QUEUED"] = 2;
  v1::WaitingJob* const waiting = status.add_waiting();
  waiting->set_id(9);
  waiting->set_name("big");
  waiting->set_reason("wants CPU 200, 128 exist");
  CHECK(StatusText(status, false) ==
        "Nodes: 4\nCPUs: 2.5/128\nGPUs: 0/32\nWorkers: 3 of 4 ready\nNode states: 3 alive, 1 suspect\n"
        "Jobs: 1 RUNNING, 2 QUEUED\nWaiting: job 9 big: wants CPU 200, 128 exist\n");
}

}  // namespace
}  // namespace rayctl::cli
