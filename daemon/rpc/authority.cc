#include "daemon/rpc/authority.h"

#include <openssl/bio.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <array>
#include <chrono>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "client/identity.h"
#include "fmt/format.h"

namespace rayctl::rpc {
namespace {

using std::chrono::hours;

constexpr hours kStartsEarly{24};  // For machines whose clock is wrong.
constexpr hours kYear{24 * 365};
constexpr hours kCaLife = 10 * kYear;
constexpr hours kCertificateLife = 5 * kYear;
constexpr int kSerialBytes = 16;

struct Free {
  void operator()(BIO* bio) const { BIO_free(bio); }
  void operator()(BIGNUM* number) const { BN_free(number); }
  void operator()(EVP_PKEY* key) const { EVP_PKEY_free(key); }
  void operator()(X509* certificate) const { X509_free(certificate); }
  void operator()(X509_REQ* request) const { X509_REQ_free(request); }
  void operator()(X509_EXTENSION* extension) const { X509_EXTENSION_free(extension); }
};
template <class T>
using Owned = std::unique_ptr<T, Free>;

absl::Status Failed(std::string_view what) {
  return absl::InternalError(fmt::format("{}: {}", what, client::OpenSslError()));
}

std::string Text(BIO* bio) {
  char* data = nullptr;
  const long length = BIO_get_mem_data(bio, &data);
  return std::string(data, static_cast<std::size_t>(length));
}

Owned<BIO> Reader(std::string_view pem) {
  return Owned<BIO>(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())));
}

absl::StatusOr<std::string> ToPem(X509* certificate) {
  const Owned<BIO> bio(BIO_new(BIO_s_mem()));
  if (bio == nullptr || PEM_write_bio_X509(bio.get(), certificate) != 1) {
    return Failed("writing a certificate");
  }
  return Text(bio.get());
}

absl::StatusOr<std::string> ToPem(EVP_PKEY* key) {
  const Owned<BIO> bio(BIO_new(BIO_s_mem()));
  if (bio == nullptr || PEM_write_bio_PrivateKey(bio.get(), key, nullptr, nullptr, 0, nullptr, nullptr) != 1) {
    return Failed("writing a key");
  }
  return Text(bio.get());
}

bool SetName(X509_NAME* name, std::string_view common_name) {
  return X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_UTF8,
                                    reinterpret_cast<const unsigned char*>(common_name.data()),
                                    static_cast<int>(common_name.size()), -1, 0) == 1;
}

bool SetTimes(X509* certificate, WallTime now, hours life) {
  const std::time_t at =
      std::chrono::system_clock::to_time_t(std::chrono::time_point_cast<std::chrono::system_clock::duration>(now));
  const auto seconds = [](hours span) { return static_cast<long>(std::chrono::seconds(span).count()); };
  std::time_t base = at;
  return X509_time_adj_ex(X509_getm_notBefore(certificate), 0, -seconds(kStartsEarly), &base) != nullptr &&
         X509_time_adj_ex(X509_getm_notAfter(certificate), 0, seconds(life), &base) != nullptr;
}

bool SetSerial(X509* certificate) {
  std::array<unsigned char, kSerialBytes> bytes{};
  if (RAND_bytes(bytes.data(), static_cast<int>(bytes.size())) != 1) {
    return false;
  }
  bytes[0] &= 0x7F;  // Serial numbers are positive.
  const Owned<BIGNUM> number(BN_bin2bn(bytes.data(), static_cast<int>(bytes.size()), nullptr));
  return number != nullptr && BN_to_ASN1_INTEGER(number.get(), X509_get_serialNumber(certificate)) != nullptr;
}

struct Extension {
  int nid;
  std::string value;
};

// `issuer` null: signs itself.
absl::StatusOr<Owned<X509>> MakeCertificate(std::string_view common_name, EVP_PKEY* key, X509* issuer,
                                            EVP_PKEY* issuer_key, WallTime now, hours life,
                                            const std::vector<Extension>& extensions) {
  Owned<X509> certificate(X509_new());
  if (certificate == nullptr || X509_set_version(certificate.get(), X509_VERSION_3) != 1 ||
      !SetSerial(certificate.get()) || !SetName(X509_get_subject_name(certificate.get()), common_name) ||
      !SetTimes(certificate.get(), now, life) || X509_set_pubkey(certificate.get(), key) != 1) {
    return Failed("making a certificate");
  }
  X509* const signer = issuer == nullptr ? certificate.get() : issuer;
  if (X509_set_issuer_name(certificate.get(), X509_get_subject_name(signer)) != 1) {
    return Failed("making a certificate");
  }
  X509V3_CTX context;
  X509V3_set_ctx(&context, signer, certificate.get(), nullptr, nullptr, 0);
  for (const Extension& extension : extensions) {
    const Owned<X509_EXTENSION> made(X509V3_EXT_conf_nid(nullptr, &context, extension.nid, extension.value.c_str()));
    if (made == nullptr || X509_add_ext(certificate.get(), made.get(), -1) != 1) {
      return Failed(fmt::format("making a certificate's {}", OBJ_nid2sn(extension.nid)));
    }
  }
  if (X509_sign(certificate.get(), issuer_key, EVP_sha256()) == 0) {
    return Failed("signing a certificate");
  }
  return certificate;
}

}  // namespace

struct Authority::Parsed {
  Owned<X509> certificate;
  Owned<EVP_PKEY> key;
};

Authority::Authority(Identity identity, std::string sha256, std::unique_ptr<Parsed> parsed)
    : identity_(std::move(identity)), sha256_(std::move(sha256)), parsed_(std::move(parsed)) {}
Authority::Authority(Authority&&) noexcept = default;
Authority& Authority::operator=(Authority&&) noexcept = default;
Authority::~Authority() = default;

absl::StatusOr<Authority> Authority::Create(WallTime now) {
  const Owned<EVP_PKEY> key(EVP_EC_gen("P-256"));
  if (key == nullptr) {
    return Failed("making the CA's key");
  }
  const absl::StatusOr<Owned<X509>> certificate =
      MakeCertificate("rayctl CA", key.get(), nullptr, key.get(), now, kCaLife,
                      {{NID_basic_constraints, "critical,CA:TRUE,pathlen:0"},
                       {NID_key_usage, "critical,keyCertSign,cRLSign"},
                       {NID_subject_key_identifier, "hash"}});
  if (!certificate.ok()) {
    return certificate.status();
  }
  absl::StatusOr<std::string> certificate_pem = ToPem(certificate->get());
  absl::StatusOr<std::string> key_pem = ToPem(key.get());
  if (!certificate_pem.ok() || !key_pem.ok()) {
    return certificate_pem.ok() ? key_pem.status() : certificate_pem.status();
  }
  return Load({*std::move(certificate_pem), *std::move(key_pem)});
}

absl::StatusOr<Authority> Authority::Load(const Identity& identity) {
  auto parsed = std::make_unique<Parsed>();
  parsed->certificate.reset(PEM_read_bio_X509(Reader(identity.certificate_pem).get(), nullptr, nullptr, nullptr));
  parsed->key.reset(PEM_read_bio_PrivateKey(Reader(identity.key_pem).get(), nullptr, nullptr, nullptr));
  if (parsed->certificate == nullptr || parsed->key == nullptr ||
      X509_check_private_key(parsed->certificate.get(), parsed->key.get()) != 1) {
    return absl::DataLossError(
        fmt::format("the CA's certificate and key do not belong together: {}", client::OpenSslError()));
  }
  absl::StatusOr<std::string> sha256 = client::CertificateSha256(identity.certificate_pem);
  if (!sha256.ok()) {
    return sha256.status();
  }
  return Authority(identity, *std::move(sha256), std::move(parsed));
}

absl::StatusOr<Identity> Authority::MakeServerIdentity(WallTime now) const {
  const Owned<EVP_PKEY> key(EVP_EC_gen("P-256"));
  if (key == nullptr) {
    return Failed("making the head's key");
  }
  const absl::StatusOr<Owned<X509>> certificate = MakeCertificate(
      client::kHeadName, key.get(), parsed_->certificate.get(), parsed_->key.get(), now, kCertificateLife,
      {{NID_basic_constraints, "critical,CA:FALSE"},
       {NID_key_usage, "critical,digitalSignature"},
       {NID_ext_key_usage, "serverAuth"},
       {NID_subject_alt_name, fmt::format("DNS:{}", client::kHeadName)},
       {NID_authority_key_identifier, "keyid"}});
  if (!certificate.ok()) {
    return certificate.status();
  }
  absl::StatusOr<std::string> certificate_pem = ToPem(certificate->get());
  absl::StatusOr<std::string> key_pem = ToPem(key.get());
  if (!certificate_pem.ok() || !key_pem.ok()) {
    return certificate_pem.ok() ? key_pem.status() : certificate_pem.status();
  }
  return Identity{*std::move(certificate_pem), *std::move(key_pem)};
}

absl::StatusOr<std::string> Authority::SignAgent(std::string_view request_pem, NodeId node, WallTime now) const {
  const Owned<X509_REQ> request(PEM_read_bio_X509_REQ(Reader(request_pem).get(), nullptr, nullptr, nullptr));
  EVP_PKEY* const key = request == nullptr ? nullptr : X509_REQ_get0_pubkey(request.get());
  if (key == nullptr || X509_REQ_verify(request.get(), key) != 1) {
    client::OpenSslError();
    return absl::InvalidArgumentError("certificate_request_pem: not a certificate request signed by its own key");
  }
  const absl::StatusOr<Owned<X509>> certificate =
      MakeCertificate(fmt::format("{}{}", client::kAgentNamePrefix, node.value), key, parsed_->certificate.get(),
                      parsed_->key.get(), now, kCertificateLife,
                      {{NID_basic_constraints, "critical,CA:FALSE"},
                       {NID_key_usage, "critical,digitalSignature"},
                       {NID_ext_key_usage, "clientAuth"},
                       {NID_authority_key_identifier, "keyid"}});
  if (!certificate.ok()) {
    return certificate.status();
  }
  return ToPem(certificate->get());
}

}  // namespace rayctl::rpc
