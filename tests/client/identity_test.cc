#include "client/identity.h"

#include <openssl/bio.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <array>
#include <catch2/catch.hpp>
#include <chrono>
#include <ctime>
#include <memory>
#include <string>
#include <vector>

#include "daemon/rpc/authority.h"

namespace rayctl::client {
namespace {

using std::chrono::hours;

struct Free {
  void operator()(BIO* bio) const { BIO_free(bio); }
  void operator()(X509* certificate) const { X509_free(certificate); }
};

std::unique_ptr<X509, Free> Read(const std::string& pem) {
  const std::unique_ptr<BIO, Free> bio(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())));
  return std::unique_ptr<X509, Free>(PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr));
}

WallTime Today() { return std::chrono::system_clock::now(); }

// Whether the certificate is within its days at that distance from now.
bool ValidAt(const std::string& pem, hours from_now) {
  const auto certificate = Read(pem);
  std::time_t at = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now() + from_now);
  return X509_cmp_time(X509_get0_notBefore(certificate.get()), &at) < 0 &&
         X509_cmp_time(X509_get0_notAfter(certificate.get()), &at) > 0;
}

bool SignedBy(const std::string& pem, const std::string& ca_pem) {
  const auto ca = Read(ca_pem);
  return X509_verify(Read(pem).get(), X509_get0_pubkey(ca.get())) == 1;
}

TEST_CASE("the CA, the head and an agent have the names and days of the contract", "[identity]") {
  const auto authority = rpc::Authority::Create(Today());
  REQUIRE(authority.ok());
  const std::string& ca = authority->identity().certificate_pem;
  CHECK(*CertificateName(ca) == "rayctl CA");
  CHECK(*CertificateSha256(ca) == authority->sha256());
  CHECK(X509_check_ca(Read(ca).get()) == 1);
  CHECK(ValidAt(ca, -hours(23)));
  CHECK(ValidAt(ca, hours(24 * 365 * 9)));

  const auto head = authority->MakeServerIdentity(Today());
  REQUIRE(head.ok());
  CHECK(*CertificateName(head->certificate_pem) == kHeadName);
  CHECK(X509_check_host(Read(head->certificate_pem).get(), kHeadName, 0, 0, nullptr) == 1);
  CHECK(X509_check_ca(Read(head->certificate_pem).get()) == 0);
  CHECK(SignedBy(head->certificate_pem, ca));
  CHECK(ValidAt(head->certificate_pem, -hours(23)));
  CHECK_FALSE(ValidAt(head->certificate_pem, -hours(25)));
  CHECK(ValidAt(head->certificate_pem, hours(24 * 365 * 4)));
  CHECK_FALSE(ValidAt(head->certificate_pem, hours(24 * 365 * 6)));

  const auto request = MakeKeyAndRequest("node-a");
  REQUIRE(request.ok());
  const auto agent = authority->SignAgent(request->request_pem, NodeId{7}, Today());
  REQUIRE(agent.ok());
  CHECK(*CertificateName(*agent) == "agent:7");
  CHECK(SignedBy(*agent, ca));
  CHECK(X509_check_ca(Read(*agent).get()) == 0);
}

TEST_CASE("an authority is loaded as it was made, and only whole", "[identity]") {
  const auto first = rpc::Authority::Create(Today());
  const auto second = rpc::Authority::Create(Today());
  CHECK(first->sha256() != second->sha256());
  const auto loaded = rpc::Authority::Load(first->identity());
  REQUIRE(loaded.ok());
  CHECK(loaded->sha256() == first->sha256());
  CHECK(
      absl::IsDataLoss(rpc::Authority::Load({first->identity().certificate_pem, second->identity().key_pem}).status()));
  CHECK(absl::IsDataLoss(rpc::Authority::Load({"", ""}).status()));
}

TEST_CASE("an identity is whole when CA, certificate and key belong together", "[identity]") {
  const auto authority = rpc::Authority::Create(Today());
  const auto other = rpc::Authority::Create(Today());
  const auto request = MakeKeyAndRequest("node-a");
  const auto stranger = MakeKeyAndRequest("node-b");
  REQUIRE((authority.ok() && other.ok() && request.ok() && stranger.ok()));
  // Signed long ago or in the future: what the clock says is not asked.
  const auto agent = authority->SignAgent(request->request_pem, NodeId{7}, Today() + hours(24 * 365));
  REQUIRE(agent.ok());
  const std::string& ca = authority->identity().certificate_pem;
  CHECK(CheckIdentity(ca, *agent, request->key_pem).ok());
  const std::string locked =
      "-----BEGIN ENCRYPTED PRIVATE KEY-----\nMBUwDQYJKoZIhvcNAQEFMAQEAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n";
  for (const auto& [ca_pem, certificate, key, why] : std::vector<std::array<std::string, 4>>{
           {"", *agent, request->key_pem, "the CA is not a PEM certificate"},
           {ca, "garbage", request->key_pem, "not a PEM certificate"},
           {ca, agent->substr(0, agent->size() / 2), request->key_pem, "not a PEM certificate"},
           {ca, *agent, "", "the key is not a PEM private key"},
           {ca, *agent, locked, "the key is not a PEM private key"},
           {ca, *agent, stranger->key_pem, "the key is not that of the certificate"},
           {other->identity().certificate_pem, *agent, request->key_pem, "the certificate is not the CA's"}}) {
    const absl::Status status = CheckIdentity(ca_pem, certificate, key);
    CHECK(absl::IsInvalidArgument(status));
    CHECK(status.message() == why);
  }
}

TEST_CASE("what is no request is not signed", "[identity]") {
  const auto authority = rpc::Authority::Create(Today());
  CHECK(absl::IsInvalidArgument(authority->SignAgent("nonsense", NodeId{1}, Today()).status()));
  CHECK(absl::IsInvalidArgument(CertificateSha256("nonsense").status()));
  CHECK(absl::IsInvalidArgument(CertificateName("").status()));
}

}  // namespace
}  // namespace rayctl::client
