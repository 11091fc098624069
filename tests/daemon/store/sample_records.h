#pragma once

#include "daemon/head/records.h"

namespace rayctl::store {

// One record of each kind with every field set to something that is not its default.
inline head::ClusterRecord SampleCluster() { return {"c-1", 2, 3, 4, 5, 6}; }

inline link::RankEnd SampleEnd() {
  link::RankEnd end;
  end.exit_code = 3;
  end.signal = 9;
  end.stop_requested = true;
  end.start_failed = true;
  end.start_error = "exec train: no such file";
  end.port_in_use = true;
  end.out_of_memory = true;
  end.peer_lost = true;
  end.last_output = "boom\n";
  end.at = WallTime{Duration{1'700'000'000'123'456'789}};
  end.lost = true;
  return end;
}

inline head::JobRecord SampleJob(std::uint64_t id = 7) {
  head::JobRecord job;
  job.id = JobId{id};
  JobSpec& spec = job.spec;
  spec.name = "digits";
  spec.argv = {"./train", "--fast"};
  spec.env_vars = {{"A", "1"}, {"B", "2"}};
  spec.train_loop_config_json = R"({"lr":0.1})";
  spec.num_workers = 2;
  spec.num_workers_max = 4;
  spec.resources_per_worker = {{"CPU", Amount::Units(2)}, {"GPU", Amount{5'000}}};
  spec.placement_strategy = PlacementStrategy::kStrictSpread;
  spec.label_selector = {{"rack", "r1"}};
  spec.accelerator_type = "H200";
  spec.storage_path = "/data";
  spec.max_failures = -1;
  spec.num_to_keep = 3;
  spec.checkpoint_score_attribute = "loss";
  spec.checkpoint_score_order = "min";
  spec.working_dir = std::string(64, 'd');
  spec.queue = "team-a";
  spec.priority = -5;
  spec.seed = 0;
  spec.timeout = std::chrono::seconds(7200);
  spec.agent_grace = std::chrono::seconds(61);
  spec.grace_period = std::chrono::milliseconds(10'500);
  spec.head_grace = std::chrono::seconds(5);
  spec.kind = JobKind::kTrain;
  job.user = "ann";
  job.request_id = "req-1";
  job.state = JobState::kStopping;
  job.reason = Reason::kTimeout;
  job.message = "timed out";
  job.exit_code = 0;
  job.failures = 2;
  job.attempt.number = 3;
  job.attempt.master_addr = "10.0.0.1";
  job.attempt.master_port = 20'001;
  job.attempt.ended = true;
  head::RankRecord running;
  running.node = NodeId{1};
  running.devices = {{0, Amount{5'000}}};
  running.state = WorkerState::kRunning;
  running.pid = 1234;
  head::RankRecord ended = running;
  ended.node = NodeId{2};
  ended.local_rank = 1;
  ended.state = WorkerState::kExited;
  ended.end = SampleEnd();
  ended.end_order = 1;
  job.attempt.ranks = {running, ended};
  job.submitted_at = WallTime{Duration{1'700'000'000'000'000'001}};
  job.started_at = WallTime{Duration{1'700'000'000'000'000'002}};
  job.ended_at = WallTime{Duration{1'700'000'000'000'000'003}};
  job.last_output = "last\n";
  job.failed_rank = 0;
  job.stop_state = JobState::kFailed;
  job.stop_reason = Reason::kTimeout;
  return job;
}

inline head::NodeRecord SampleNode() {
  head::NodeRecord node;
  node.id = NodeId{9};
  node.name = "a";
  node.address = "10.0.0.9";
  node.interface_name = "eth0";
  node.boot_id = "boot";
  node.resources = {{"CPU", Amount::Units(8)}, {"memory", Amount::Units(1 << 30)}};
  node.labels = {{"rack", "r1"}};
  node.gpu_count = 4;
  node.state = NodeState::kAlive;
  node.reason = "why";
  node.draining = true;
  node.said_goodbye = true;
  node.version = "0.1.0";
  node.is_head_node = true;
  node.port_min = 20'000;
  node.port_max = 29'999;
  return node;
}

inline head::TokenRecord SampleToken() {
  head::TokenRecord token;
  token.id = TokenId{5};
  token.name = "ci";
  token.role = Role::kViewer;
  token.sha256 = std::string(32, '\xfe');
  token.created_at = WallTime{Duration{11}};
  token.expires_at = WallTime{Duration{12}};
  token.revoked = true;
  return token;
}

}  // namespace rayctl::store
