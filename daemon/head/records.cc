#include "daemon/head/records.h"

namespace rayctl::head {
namespace {

struct Key {
  RecordKey operator()(const ClusterRecord&) const { return {RecordKind::kCluster, 0}; }
  RecordKey operator()(const JobRecord& job) const { return {RecordKind::kJob, job.id.value}; }
  RecordKey operator()(const NodeRecord& node) const { return {RecordKind::kNode, node.id.value}; }
  RecordKey operator()(const TokenRecord& token) const { return {RecordKind::kToken, token.id.value}; }
};

}  // namespace

RecordKey KeyOf(const Record& record) { return std::visit(Key{}, record); }

}  // namespace rayctl::head
