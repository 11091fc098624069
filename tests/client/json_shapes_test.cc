#include "client/json_shapes.h"

#include <catch2/catch.hpp>

#include "base/json_text.h"

namespace rayctl::client {
namespace {

std::string Line(const nlohmann::ordered_json& json) { return JsonText(json, NonFinite::kStrings); }

TEST_CASE("JOB is an id or a name", "[json_shapes]") {
  CHECK(ParseJobRef("17").id() == 17);
  CHECK(ParseJobRef("17b").name() == "17b");
  CHECK(ParseJobRef("-1").name() == "-1");
  CHECK(ParseJobRef("99999999999999999999999").name() == "99999999999999999999999");
}

TEST_CASE("a job that waits has every field, and null where nothing is set", "[json_shapes]") {
  v1::Job job;
  job.set_id(3);
  job.mutable_spec()->set_kind(v1::JOB_KIND_COMMAND);
  job.mutable_status()->set_state(v1::JOB_STATE_QUEUED);
  job.mutable_status()->set_reason(v1::REASON_INFEASIBLE);
  job.mutable_status()->mutable_submitted_at()->set_seconds(1'700'000'000);
  CHECK(Line(JobJson(job)) ==
        R"({"id": 3, "name": null, "kind": "command", "state": "QUEUED", "reason": "INFEASIBLE", "message": null, )"
        R"("exit_code": null, "user": null, "queue": null, "priority": 0, "attempt": 0, "failures": 0, )"
        R"("num_workers": 1, "nodes": [], "path": null, "submitted_at": "2023-11-14T22:13:20.000Z", )"
        R"("started_at": null, "ended_at": null})");
}

TEST_CASE("a job that ended", "[json_shapes]") {
  v1::Job job;
  job.set_id(4);
  job.mutable_spec()->set_name("n");
  job.mutable_spec()->set_kind(v1::JOB_KIND_TRAIN);
  job.mutable_spec()->set_queue("q");
  job.mutable_spec()->set_priority(5);
  job.mutable_spec()->mutable_scaling_config()->set_num_workers(4);
  v1::JobStatus& status = *job.mutable_status();
  status.set_state(v1::JOB_STATE_FAILED);
  status.set_reason(v1::REASON_OUT_OF_MEMORY);
  status.set_message("m");
  status.set_exit_code(0);
  status.set_user("ann");
  status.set_attempt(2);
  status.set_failures(3);
  status.add_nodes("b");
  status.add_nodes("a");
  status.set_path("/p");
  CHECK(Line(JobJson(job)) ==
        R"({"id": 4, "name": "n", "kind": "train", "state": "FAILED", "reason": "OUT_OF_MEMORY", "message": "m", )"
        R"("exit_code": 0, "user": "ann", "queue": "q", "priority": 5, "attempt": 2, "failures": 3, )"
        R"("num_workers": 4, "nodes": ["b", "a"], "path": "/p", "submitted_at": null, "started_at": null, )"
        R"("ended_at": null})");
}

TEST_CASE("a worker", "[json_shapes]") {
  v1::Worker worker;
  worker.set_job_id(4);
  worker.set_rank(1);
  worker.set_node("a");
  worker.set_state(v1::WORKER_STATE_STARTING);
  CHECK(Line(WorkerJson(worker)) ==
        R"({"job_id": 4, "attempt": 0, "rank": 1, "local_rank": 0, "node": "a", "pid": null, "state": "STARTING", )"
        R"("exit_code": null, "signal": null})");
}

TEST_CASE("a node: sorted names, whole amounts as integers", "[json_shapes]") {
  v1::Node node;
  node.set_id(1);
  node.set_name("a");
  node.set_address("10.0.0.1");
  node.set_state(v1::NODE_STATE_DRAINING);
  (*node.mutable_labels())["zone"] = "z";
  (*node.mutable_labels())["rack"] = "r";
  (*node.mutable_resources())["memory"].set_total(68719476736.0);
  (*node.mutable_resources())["CPU"].set_total(8);
  (*node.mutable_resources())["CPU"].set_used(0.5);
  v1::NodeDevice& fenced = *node.add_devices();
  fenced.set_vendor("nvidia");
  fenced.set_id("GPU-1");
  fenced.set_name("NVIDIA H100 80GB HBM3");
  fenced.set_memory_bytes(85520809984);
  fenced.set_used(0.5);
  fenced.add_jobs(7);
  fenced.set_problem("held by process 9");
  node.add_devices()->set_index(1);
  node.add_remarks("memory limits are not enforced here");
  CHECK(Line(NodeJson(node)) ==
        R"({"id": 1, "name": "a", "address": "10.0.0.1", "state": "draining", "reason": null, )"
        R"("labels": {"rack": "r", "zone": "z"}, "resources": {"CPU": {"total": 8, "used": 0.5}, )"
        R"("memory": {"total": 68719476736, "used": 0}}, )"
        R"("devices": [{"index": 0, "vendor": "nvidia", "id": "GPU-1", "name": "NVIDIA H100 80GB HBM3", )"
        R"("memory_bytes": 85520809984, "used": 0.5, "jobs": [7], "problem": "held by process 9"}, )"
        R"({"index": 1, "vendor": null, "id": null, "name": null, "memory_bytes": null, "used": 0, "jobs": [], )"
        R"("problem": null}], "remarks": ["memory limits are not enforced here"]})");
}

TEST_CASE("status", "[json_shapes]") {
  v1::GetStatusResponse status;
  status.set_address("10.0.0.1:6379");
  status.set_version("0.1.0");
  (*status.mutable_nodes())["alive"] = 1;
  status.set_workers_ready(1);
  status.set_workers_total(1);
  (*status.mutable_jobs())["QUEUED"] = 1;
  v1::WaitingJob* const waiting = status.add_waiting();
  waiting->set_id(2);
  waiting->set_name("w");
  waiting->set_reason("why");
  CHECK(Line(StatusJson(status)) ==
        R"({"address": "10.0.0.1:6379", "version": "0.1.0", "started_at": null, )"
        R"("nodes": {"alive": 1, "suspect": 0, "draining": 0, "dead": 0}, "resources": {}, )"
        R"("workers": {"ready": 1, "total": 1}, "jobs": {"QUEUED": 1}, )"
        R"("waiting": [{"id": 2, "name": "w", "reason": "why"}]})");
}

TEST_CASE("a spec reads like the job file it came from", "[json_shapes]") {
  v1::JobSpec spec;
  spec.set_entrypoint("e");
  spec.set_train_loop_config_json(R"({"lr": NaN, "n": 1, "x": 1.0})");
  spec.mutable_scaling_config()->set_num_workers(2);
  spec.mutable_scaling_config()->set_num_workers_max(8);
  spec.mutable_timeout()->set_seconds(90);
  const nlohmann::ordered_json json = SpecJson(spec);
  CHECK(Line(json["train_loop_config"]) == R"({"lr": "NaN", "n": 1, "x": 1.0})");
  CHECK(Line(json["scaling_config"]["num_workers"]) == "[2, 8]");
  CHECK(json["timeout"] == 90);
  CHECK(json["argv"].is_null());
  CHECK(json["agent_grace"].is_null());
}

TEST_CASE("a state that this version does not know shows its number", "[json_shapes]") {
  CHECK(StateName(static_cast<v1::JobState>(42)) == "42");
}

}  // namespace
}  // namespace rayctl::client
