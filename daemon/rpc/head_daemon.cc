#include "daemon/rpc/head_daemon.h"

#include <grpc/support/log.h>
#include <malloc.h>
#include <pwd.h>
#include <spdlog/spdlog.h>
#include <sys/resource.h>
#include <unistd.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "base/addresses.h"
#include "base/startup_memory.h"
#include "base/status_text.h"
#include "base/unique_fd.h"
#include "base/whole_files.h"
#include "client/channel.h"
#include "client/endpoint.h"
#include "client/token.h"
#include "daemon/net/client_watch.h"
#include "daemon/net/kept_file.h"
#include "daemon/net/notify.h"
#include "daemon/net/port_owner.h"
#include "daemon/rpc/authority.h"
#include "daemon/rpc/head_files.h"
#include "daemon/rpc/head_loop.h"
#include "daemon/rpc/server.h"
#include "daemon/store/store.h"
#include "daemon/web/web_server.h"
#include "fmt/format.h"

namespace rayctl::rpc {
namespace {

namespace asio = boost::asio;

// After the cluster was stopped, agents are given this long to hear it and leave.
constexpr std::chrono::seconds kLeavePatience{2};
// Open calls end within this, or the process goes without them.
constexpr std::chrono::seconds kShutdownPatience{2};
constexpr std::size_t kClusterIdBytes = 8;
// Jobs that ended: each costs the head about 1.4 KB of memory, and its start the time to read it.
constexpr std::size_t kFinishedJobsMax = 10'000;
constexpr int kMallocArenas = 2;  // One loop thread and few of gRPC: more arenas only hold memory.
constexpr char kJoinTokenName[] = "join";

void RaiseDescriptorLimit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
    limit.rlim_cur = limit.rlim_max;
    if (::setrlimit(RLIMIT_NOFILE, &limit) != 0) {
      spdlog::warn("descriptor limit stays low why={}", std::strerror(errno));
    }
  }
}

// gRPC's own words into our log.
void LogGrpc(gpr_log_func_args* args) {
  const spdlog::level::level_enum level =
      args->severity == GPR_LOG_SEVERITY_ERROR ? spdlog::level::warn : spdlog::level::debug;
  spdlog::log(level, "grpc {}", args->message);
}

std::string UserName() {
  const passwd* const entry = ::getpwuid(::geteuid());
  return entry == nullptr ? fmt::format("uid-{}", ::geteuid()) : entry->pw_name;
}

class HeadDaemon {
 public:
  explicit HeadDaemon(const HeadOptions& options) : options_(options), ready_(options.ready_fd) {}

  int Run() {
    if (const absl::Status started = Start(); !started.ok()) {
      spdlog::error("not started why={}", Text(started));
      failure_ = Text(started);
      Withdraw();
      // The server may hold calls by now; they end with the process.
      if (server_ != nullptr) {
        EndServer();
        io_.run();
      }
      web_.reset();
      server_.reset();
      loop_.reset();
      store_.reset();
      SayFailure();  // Last: whoever hears it may mend something and start the next head at once.
      return EXIT_FAILURE;
    }
    io_.run();
    Withdraw();
    spdlog::info("head ended");
    return EXIT_SUCCESS;
  }

 private:
  absl::Status Start() {
    absl::Status status = OpenFolders();
    if (status.ok()) {
      status = OpenState();
    }
    if (status.ok()) {
      status = Listen();
    }
    if (status.ok()) {
      status = Advertise();
    }
    return status;
  }

  absl::Status OpenFolders() {
    head_dir_ = options_.state_dir + "/head";
    for (const std::string& folder : {options_.state_dir, head_dir_, options_.run_dir}) {
      if (absl::Status made = MakePrivateFolder(folder); !made.ok()) {
        return made;
      }
    }
    return CheckLocalFolder(options_.state_dir);
  }

  absl::Status OpenState() {
    const std::string journal = head_dir_ + "/journal.db";
    std::error_code unreadable;
    const std::uintmax_t bytes = std::filesystem::file_size(journal, unreadable);
    if (unreadable == std::errc::no_such_file_or_directory || (!unreadable && bytes == 0)) {
      // Before anything is put where the lost one belongs.
      if (absl::Status kept = CheckJournalIsThatOf(head_dir_, std::nullopt); !kept.ok()) {
        return kept;
      }
    }
    // Early, because it is what keeps a second head off this folder.
    absl::StatusOr<std::unique_ptr<store::Store>> opened = store::OpenSqliteStore(journal);
    if (!opened.ok()) {
      return opened.status();
    }
    store_ = *std::move(opened);
    absl::StatusOr<std::vector<head::Record>> records = store_->Load();
    if (!records.ok()) {
      return records.status();
    }
    const Now now = clock_->Read();
    spdlog::info("journal read records={}", records->size());
    absl::StatusOr<std::string> cluster_id = SettleCluster(*records);
    if (!cluster_id.ok()) {
      return cluster_id.status();
    }
    auto machine = std::make_unique<head::Head>(
        head::HeadConfig{.version = options_.version, .finished_jobs_max = kFinishedJobsMax}, *std::move(records),
        *std::move(cluster_id), now);
    loop_ = std::make_unique<HeadLoop>(HeadLoop::Deps{io_, *clock_, *store_, std::move(machine)});
    if (options_.insecure) {
      return absl::OkStatus();
    }
    absl::StatusOr<Authority> authority = LoadOrCreateAuthority(head_dir_, now.wall);
    if (!authority.ok()) {
      return authority.status();
    }
    authority_ = *std::move(authority);
    absl::StatusOr<Identity> identity = WriteServerIdentity(head_dir_, *authority_, now.wall);
    if (!identity.ok()) {
      return identity.status();
    }
    identity_ = *std::move(identity);
    return EnsureTokens();
  }

  // The id of the cluster whose journal this is. A new one is in the journal before anything says that it was here.
  absl::StatusOr<std::string> SettleCluster(const std::vector<head::Record>& records) {
    std::optional<std::string> cluster_id;
    for (const head::Record& record : records) {
      if (const auto* cluster = std::get_if<head::ClusterRecord>(&record)) {
        cluster_id = cluster->cluster_id;
      }
    }
    if (absl::Status kept = CheckJournalIsThatOf(head_dir_, cluster_id); !kept.ok()) {
      return kept;
    }
    if (!cluster_id) {
      cluster_id = client::ToHex(RandomBytes());
      if (absl::Status begun = store_->Commit({head::Record(head::ClusterRecord{.cluster_id = *cluster_id})});
          !begun.ok()) {
        return begun;
      }
    }
    absl::Status noted = NoteCluster(head_dir_, *cluster_id);
    return noted.ok() ? absl::StatusOr<std::string>(*std::move(cluster_id)) : noted;
  }

  static std::string RandomBytes() {
    // A token's secret is as random as anything here.
    const absl::StatusOr<client::Token> token = client::MakeToken(std::string(2 * client::kSecretBytes, '0'));
    return token.ok() ? token->secret.substr(0, kClusterIdBytes) : std::string(kClusterIdBytes, '\0');
  }

  std::string AdminTokenPath() const { return head_dir_ + "/admin-token"; }
  std::string JoinTokenPath() const { return head_dir_ + "/join-token"; }

  // The files are written before the journal knows the tokens, so after a crash between the two the same are taken.
  absl::Status EnsureTokens() {
    const absl::StatusOr<std::vector<client::Token>> tokens =
        LoadOrCreateTokens({AdminTokenPath(), JoinTokenPath()}, authority_->sha256());
    if (!tokens.ok()) {
      return tokens.status();
    }
    const auto answers = std::make_shared<std::vector<absl::Status>>();
    std::size_t asked = EnsureToken(tokens->at(0), UserName(), Role::kAdmin, answers);
    asked += EnsureToken(tokens->at(1), kJoinTokenName, Role::kJoin, answers);
    // Nobody else can call before they are decided; together they are one commit.
    while (answers->size() < asked && loop_->journal_status().ok() && io_.run_one() != 0) {
    }
    io_.restart();
    for (const absl::Status& answer : *answers) {
      if (!answer.ok()) {
        return answer;
      }
    }
    return loop_->journal_status();
  }

  // Gives how many answers will come.
  std::size_t EnsureToken(const client::Token& token, const std::string& name, Role role,
                          const std::shared_ptr<std::vector<absl::Status>>& answers) {
    // A call that is never decided is answered when the loop stops, long after this.
    const auto note = [answers](const absl::StatusOr<head::Answer>& answer) { answers->push_back(answer.status()); };
    const std::string hash = client::HashSecret(token.secret);
    bool name_lives = false;
    for (const auto& [id, record] : loop_->head().tokens()) {
      if (record.sha256 == hash) {
        return 0;  // Also where it was revoked: that was somebody's will.
      }
      name_lives = name_lives || (!record.revoked && record.name == name);
    }
    if (name_lives) {  // Its file is lost.
      loop_->Call(head::RevokeToken{.name = name}, note);
    }
    loop_->Call(head::CreateToken{.name = name, .role = role, .sha256 = hash}, note);
    return name_lives ? 2 : 1;
  }

  std::string PortPath() const { return head_dir_ + "/port"; }

  // A head whose port was picked takes the same one again while it is free: its agents come back to where they knew it.
  std::uint16_t PortBefore() const {
    const absl::StatusOr<std::string> text = ReadFile(PortPath());
    std::uint32_t port = 0;
    const bool known = text.ok() && absl::SimpleAtoi(*text, &port) && port <= std::numeric_limits<std::uint16_t>::max();
    return known ? static_cast<std::uint16_t>(port) : std::uint16_t{0};
  }

  absl::Status Listen() {
    ServerOptions server_options{.host = net::IsAnyHost(options_.host) ? std::string() : options_.host,
                                 .port = options_.port,
                                 .preferred_port = PortBefore(),
                                 .version = options_.version,
                                 .started_at = clock_->Read().wall,
                                 .working_dirs_dir = head_dir_ + "/working_dirs",
                                 .insecure = options_.insecure};
    absl::StatusOr<std::unique_ptr<Server>> server =
        Server::Start(std::move(server_options), *loop_, clock_, authority_ ? &*authority_ : nullptr, identity_);
    if (!server.ok()) {
      return server.status();
    }
    server_ = *std::move(server);
    web::WebOptions web_options{.host = options_.dashboard_host,
                                .port = options_.dashboard_port,
                                .version = options_.version,
                                .api = client::kApiVersion,
                                .insecure = options_.insecure};
    if (authority_) {
      web_options.tls = {identity_.certificate_pem + authority_->identity().certificate_pem, identity_.key_pem};
    }
    absl::StatusOr<std::unique_ptr<web::WebServer>> web =
        web::WebServer::Start(std::move(web_options),
                              {.read = [this](std::string_view path) { return server_->WebJson(path); },
                               .check_token = [this](std::string_view bearer) { return server_->MayLook(bearer); }},
                              io_);
    if (!web.ok()) {
      return web.status();
    }
    web_ = *std::move(web);
    loop_->set_on_cluster_stopped([this] { OnClusterStopped(); });
    std::signal(SIGPIPE, SIG_IGN);
    signals_.add(SIGTERM);
    signals_.add(SIGINT);
    AwaitSignal();
    client_.emplace(io_, options_.client_fd, [this] {
      spdlog::info("ending: the program that this cluster served has ended");
      End();
    });
    return absl::OkStatus();
  }

  absl::Status Advertise() {
    const bool any = net::IsAnyHost(options_.host);
    const std::string loopback = net::JoinAddress("127.0.0.1", server_->port());
    const std::string local_address = any ? loopback : net::JoinAddress(options_.host, server_->port());
    const std::string reachable = options_.node_ip_address.empty() ? net::FirstAddress() : options_.node_ip_address;
    const std::string address = options_.insecure && any ? loopback
                                : any                    ? net::JoinAddress(reachable, server_->port())
                                                         : local_address;
    server_->set_address(address);
    const std::optional<std::uint64_t> ticks = client::ProcessStartTicks(::getpid());
    if (!ticks) {
      return absl::UnavailableError("reading this process's own /proc/self/stat; is /proc mounted?");
    }
    const nlohmann::ordered_json about{{"pid", ::getpid()},
                                       {"start_ticks", *ticks},
                                       {"address", address},
                                       {"local_address", local_address},
                                       {"dashboard_url", web_->url()},
                                       {"state_dir", options_.state_dir},
                                       {"node_id", 0},
                                       {"node_name", ""},
                                       {"version", options_.version},
                                       {"insecure", options_.insecure},
                                       {"private", options_.client_fd >= 0}};
    if (absl::Status written = kept_.Keep(about.dump() + "\n"); !written.ok()) {
      return written;
    }
    if (options_.port == 0) {
      if (absl::Status written = WriteWhole({{PortPath(), std::to_string(server_->port()) + "\n"}}); !written.ok()) {
        return written;
      }
    }
    advertised_ = true;
    spdlog::info("head ready address={} dashboard={}", address, web_->url());
    ReleaseStartupMemory();
    Notify("READY=1");
    Say({{"ok", true},
         {"address", address},
         {"local_address", local_address},
         {"port", server_->port()},
         {"dashboard_url", web_->url()},
         {"node_id", 0},
         {"node_name", ""},
         {"admin_token_file", options_.insecure ? "" : AdminTokenPath()},
         {"join_token_file", options_.insecure ? "" : JoinTokenPath()}});
    return absl::OkStatus();
  }

  void AwaitSignal() {
    signals_.async_wait([this](const boost::system::error_code& error, int signal) {
      if (error) {
        return;
      }
      if (signal == SIGINT && !stopping_cluster_) {
        stopping_cluster_ = true;
        spdlog::info("stopping the cluster");
        loop_->Deliver(head::StopCluster{"the cluster is being stopped"});
      } else {
        spdlog::info("ending signal={}", signal);
        End();
      }
      AwaitSignal();
    });
  }

  void OnClusterStopped() {
    spdlog::info("cluster stopped agents={}", server_->agents());
    leave_timer_.expires_after(kLeavePatience);
    leave_timer_.async_wait([this](const boost::system::error_code& error) {
      if (!error) {
        End();
      }
    });
    server_->WhenNoAgents([this] { End(); });
  }

  // What was decided is in the journal; nothing has to be waited for but the calls that are open.
  void End() {
    if (std::exchange(ending_, true)) {
      return;
    }
    leave_timer_.cancel();
    Notify("STOPPING=1");
    web_->Stop();
    loop_->Stop();
    EndServer();
  }

  void EndServer() {
    leave_timer_.expires_after(kShutdownPatience);
    leave_timer_.async_wait([this](const boost::system::error_code& error) {
      if (!error) {
        spdlog::warn("calls are still open at the end");
        SayFailure();
        std::_Exit(failure_ ? EXIT_FAILURE : EXIT_SUCCESS);
      }
    });
    server_->Shutdown([this] {
      leave_timer_.cancel();
      signals_.cancel();
      io_.stop();
    });
  }

  std::string AboutPath() const { return options_.run_dir + "/head.json"; }

  static void NoteLoss(const absl::Status& made) {
    if (made.ok()) {
      spdlog::warn("somebody removed what others find this head by; it was made again");
    } else {
      spdlog::error("others cannot find this head any more why={}", Text(made));
    }
  }

  void Withdraw() {
    kept_.LetGo();
    if (std::exchange(advertised_, false)) {
      ::unlink(AboutPath().c_str());
    }
  }

  void Notify(std::string_view state) const {
    if (const absl::Status told = net::Notify(options_.notify_socket, state); !told.ok()) {
      spdlog::warn("service manager not told why={}", Text(told));
    }
  }

  void SayFailure() {
    if (failure_) {
      Say({{"ok", false}, {"error", *failure_}});
    }
  }

  void Say(const nlohmann::ordered_json& line) {
    if (!ready_.valid()) {
      return;
    }
    const std::string text = line.dump() + "\n";
    // Shorter than a pipe's buffer, so it is written whole.
    if (::write(ready_.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size())) {
      spdlog::warn("nobody reads that the head is ready why={}", std::strerror(errno));
    }
    ready_.Reset();
  }

  HeadOptions options_;
  UniqueFd ready_;
  std::string head_dir_;
  std::shared_ptr<const Clock> clock_ = std::make_shared<SystemClock>();
  asio::io_context io_{1};
  asio::signal_set signals_{io_};
  asio::steady_timer leave_timer_{io_};
  net::KeptFile kept_{io_, AboutPath(), [](const absl::Status& made) { NoteLoss(made); }};
  std::optional<net::ClientWatch> client_;
  std::unique_ptr<store::Store> store_;
  std::optional<Authority> authority_;
  Identity identity_;
  std::unique_ptr<HeadLoop> loop_;
  std::unique_ptr<Server> server_;
  std::unique_ptr<web::WebServer> web_;
  std::optional<std::string> failure_;  // Why it was not started.
  bool advertised_ = false;
  bool stopping_cluster_ = false;
  bool ending_ = false;
};

}  // namespace

int RunHead(const HeadOptions& options) {
  ::mallopt(M_ARENA_MAX, kMallocArenas);
  ::gpr_set_log_function(LogGrpc);
  RaiseDescriptorLimit();
  return HeadDaemon(options).Run();
}

}  // namespace rayctl::rpc
