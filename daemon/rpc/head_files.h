#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/clock.h"
#include "client/token.h"
#include "daemon/rpc/authority.h"

// The head's files in its state folder (docs/contracts.md).
namespace rayctl::rpc {

// Makes the folder and its parents; the last one 0700. PERMISSION_DENIED: it is another user's.
absl::Status MakePrivateFolder(const std::string& path);
// FAILED_PRECONDITION: the folder is on a network file system, where the journal's locks do not hold.
absl::Status CheckLocalFolder(const std::string& path);
// NOT_FOUND: no such file.
absl::StatusOr<std::string> ReadFile(const std::string& path);

// Notes in `head_dir` whose journal is there, so that a lost one is not taken for a new cluster, whose ids begin at 1.
// `cluster_id`: of the journal; none while it is empty. FAILED_PRECONDITION: it is not the journal that was there.
absl::Status CheckJournalIsThatOf(const std::string& head_dir, const std::optional<std::string>& cluster_id);
absl::Status NoteCluster(const std::string& head_dir, const std::string& cluster_id);

// The CA in `head_dir`, made when there is none.
absl::StatusOr<Authority> LoadOrCreateAuthority(const std::string& head_dir, WallTime now);
// A fresh certificate of the head, kept beside the CA for people to look at.
absl::StatusOr<Identity> WriteServerIdentity(const std::string& head_dir, const Authority& authority, WallTime now);
// The token in each of these files of one folder; a new one of that CA where there is none, or one of another CA.
absl::StatusOr<std::vector<client::Token>> LoadOrCreateTokens(const std::vector<std::string>& paths,
                                                              const std::string& ca_sha256);

}  // namespace rayctl::rpc
