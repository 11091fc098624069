#include "client/identity.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

#include <array>
#include <memory>

#include "absl/status/status.h"
#include "client/token.h"
#include "fmt/format.h"

namespace rayctl::client {
namespace {

constexpr std::size_t kErrorTextMax = 256;

struct Free {
  void operator()(BIO* bio) const { BIO_free(bio); }
  void operator()(EVP_PKEY* key) const { EVP_PKEY_free(key); }
  void operator()(X509* certificate) const { X509_free(certificate); }
  void operator()(X509_REQ* request) const { X509_REQ_free(request); }
};
template <class T>
using Owned = std::unique_ptr<T, Free>;

std::string Text(BIO* bio) {
  char* data = nullptr;
  const long length = BIO_get_mem_data(bio, &data);
  return std::string(data, static_cast<std::size_t>(length));
}

absl::Status Failed(std::string_view what) { return absl::InternalError(fmt::format("{}: {}", what, OpenSslError())); }

absl::StatusOr<Owned<X509>> ReadCertificate(std::string_view pem) {
  const Owned<BIO> bio(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())));
  Owned<X509> certificate(PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr));
  if (certificate == nullptr) {
    OpenSslError();
    return absl::InvalidArgumentError("not a PEM certificate");
  }
  return certificate;
}

// OpenSSL would ask the terminal.
int NoPassword(char* /*buffer*/, int /*size*/, int /*for_writing*/, void* /*context*/) { return -1; }

}  // namespace

std::string OpenSslError() {
  std::string text = "OpenSSL gave no reason";
  while (const unsigned long error = ERR_get_error()) {
    std::array<char, kErrorTextMax> buffer{};
    ERR_error_string_n(error, buffer.data(), buffer.size());
    text = buffer.data();
  }
  return text;
}

absl::StatusOr<KeyAndRequest> MakeKeyAndRequest(std::string_view common_name) {
  const Owned<EVP_PKEY> key(EVP_EC_gen("P-256"));
  if (key == nullptr) {
    return Failed("making a key");
  }
  const Owned<X509_REQ> request(X509_REQ_new());
  X509_NAME* const name = request == nullptr ? nullptr : X509_REQ_get_subject_name(request.get());
  if (name == nullptr || X509_REQ_set_version(request.get(), X509_REQ_VERSION_1) != 1 ||
      X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_UTF8, reinterpret_cast<const unsigned char*>(common_name.data()),
                                 static_cast<int>(common_name.size()), -1, 0) != 1 ||
      X509_REQ_set_pubkey(request.get(), key.get()) != 1 ||
      X509_REQ_sign(request.get(), key.get(), EVP_sha256()) == 0) {
    return Failed("making a certificate request");
  }
  const Owned<BIO> key_bio(BIO_new(BIO_s_mem()));
  const Owned<BIO> request_bio(BIO_new(BIO_s_mem()));
  if (PEM_write_bio_PrivateKey(key_bio.get(), key.get(), nullptr, nullptr, 0, nullptr, nullptr) != 1 ||
      PEM_write_bio_X509_REQ(request_bio.get(), request.get()) != 1) {
    return Failed("writing a certificate request");
  }
  return KeyAndRequest{Text(key_bio.get()), Text(request_bio.get())};
}

absl::StatusOr<std::string> CertificateSha256(std::string_view certificate_pem) {
  const absl::StatusOr<Owned<X509>> certificate = ReadCertificate(certificate_pem);
  if (!certificate.ok()) {
    return certificate.status();
  }
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned int length = 0;
  if (X509_digest(certificate->get(), EVP_sha256(), digest.data(), &length) != 1) {
    return Failed("hashing a certificate");
  }
  return ToHex(std::string_view(reinterpret_cast<const char*>(digest.data()), length));
}

absl::StatusOr<std::string> CertificateName(std::string_view certificate_pem) {
  const absl::StatusOr<Owned<X509>> certificate = ReadCertificate(certificate_pem);
  if (!certificate.ok()) {
    return certificate.status();
  }
  const X509_NAME* const name = X509_get_subject_name(certificate->get());
  const int index = X509_NAME_get_index_by_NID(name, NID_commonName, -1);
  const X509_NAME_ENTRY* const entry = index < 0 ? nullptr : X509_NAME_get_entry(name, index);
  if (entry == nullptr) {
    return absl::InvalidArgumentError("the certificate has no common name");
  }
  unsigned char* text = nullptr;
  const int length = ASN1_STRING_to_UTF8(&text, X509_NAME_ENTRY_get_data(entry));
  if (length < 0) {
    return absl::InvalidArgumentError("the certificate's common name is not text");
  }
  std::string result(reinterpret_cast<const char*>(text), static_cast<std::size_t>(length));
  OPENSSL_free(text);
  return result;
}

absl::Status CheckIdentity(std::string_view ca_pem, std::string_view certificate_pem, std::string_view key_pem) {
  const absl::StatusOr<Owned<X509>> ca = ReadCertificate(ca_pem);
  if (!ca.ok()) {
    return absl::InvalidArgumentError("the CA is not a PEM certificate");
  }
  const absl::StatusOr<Owned<X509>> certificate = ReadCertificate(certificate_pem);
  if (!certificate.ok()) {
    return certificate.status();
  }
  const Owned<BIO> bio(BIO_new_mem_buf(key_pem.data(), static_cast<int>(key_pem.size())));
  const Owned<EVP_PKEY> key(PEM_read_bio_PrivateKey(bio.get(), nullptr, &NoPassword, nullptr));
  absl::Status status;
  if (key == nullptr) {
    status = absl::InvalidArgumentError("the key is not a PEM private key");
  } else if (X509_check_private_key(certificate->get(), key.get()) != 1) {
    status = absl::InvalidArgumentError("the key is not that of the certificate");
  } else if (X509_verify(certificate->get(), X509_get0_pubkey(ca->get())) != 1) {
    status = absl::InvalidArgumentError("the certificate is not the CA's");
  }
  OpenSslError();
  return status;
}

}  // namespace rayctl::client
