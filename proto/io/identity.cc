#include "proto/io/identity.h"

#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <memory>

#include "absl/strings/str_cat.h"
#include "proto/io/openssl_error.h"

namespace muster {
namespace {

struct Free {
  void operator()(EVP_PKEY* p) const { EVP_PKEY_free(p); }
  void operator()(X509* p) const { X509_free(p); }
  void operator()(X509_EXTENSION* p) const { X509_EXTENSION_free(p); }
  void operator()(BIO* p) const { BIO_free(p); }
};
using KeyPair = std::unique_ptr<EVP_PKEY, Free>;
using Certificate = std::unique_ptr<X509, Free>;
using Extension = std::unique_ptr<X509_EXTENSION, Free>;
using Buffer = std::unique_ptr<BIO, Free>;

void RequireCertificate(bool has_worked) { RequireOpenSsl(has_worked, "make a certificate"); }

KeyPair MakeKeyPair(const Key& channel_key, absl::string_view label) {
  const Key seed = DeriveSubkey(channel_key, label);
  KeyPair pair(EVP_PKEY_new_raw_private_key(EVP_PKEY_ED25519, nullptr, seed.data(), seed.size()));
  RequireOpenSsl(pair != nullptr, "make a key");
  return pair;
}

void SetName(X509_NAME* name, const std::string& common_name) {
  RequireCertificate(
      X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC,
                                 reinterpret_cast<const unsigned char*>(common_name.c_str()), -1,
                                 -1, 0) == 1);
}

void AddExtension(X509* certificate, X509* issuer, int nid, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  Extension extension(X509V3_EXT_conf_nid(nullptr, &context, nid, value.c_str()));
  RequireCertificate(extension != nullptr);
  RequireCertificate(X509_add_ext(certificate, extension.get(), -1) == 1);
}

Certificate MakeUnsigned(EVP_PKEY* key, int64_t serial, const std::string& common_name) {
  Certificate certificate(X509_new());
  RequireCertificate(certificate != nullptr);
  X509* x = certificate.get();
  RequireCertificate(X509_set_version(x, X509_VERSION_3) == 1);
  RequireCertificate(ASN1_INTEGER_set_int64(X509_get_serialNumber(x), serial) == 1);
  RequireCertificate(ASN1_TIME_set_string_X509(X509_getm_notBefore(x), "19700101000000Z") == 1);
  RequireCertificate(ASN1_TIME_set_string_X509(X509_getm_notAfter(x), "99991231235959Z") == 1);
  SetName(X509_get_subject_name(x), common_name);
  RequireCertificate(X509_set_pubkey(x, key) == 1);
  return certificate;
}

// The name is part of the subject: a server of several users holds all their authorities in one
// list.
Certificate MakeAuthority(EVP_PKEY* key, const std::string& name) {
  Certificate certificate = MakeUnsigned(key, 1, absl::StrCat("authority ", name));
  X509* x = certificate.get();
  X509_set_issuer_name(x, X509_get_subject_name(x));
  AddExtension(x, x, NID_basic_constraints, "critical,CA:TRUE,pathlen:0");
  AddExtension(x, x, NID_key_usage, "critical,keyCertSign");
  AddExtension(x, x, NID_subject_key_identifier, "hash");
  RequireCertificate(X509_sign(x, key, nullptr) > 0);
  return certificate;
}

Certificate MakeLeaf(EVP_PKEY* key, TlsRole role, const std::string& name, X509* authority,
                     EVP_PKEY* authority_key) {
  const bool is_server = role == TlsRole::kServer;
  Certificate certificate =
      MakeUnsigned(key, is_server ? 2 : 3, absl::StrCat(is_server ? "server " : "agent ", name));
  X509* x = certificate.get();
  X509_set_issuer_name(x, X509_get_subject_name(authority));
  AddExtension(x, authority, NID_basic_constraints, "critical,CA:FALSE");
  AddExtension(x, authority, NID_key_usage, "critical,digitalSignature");
  AddExtension(x, authority, NID_ext_key_usage, is_server ? "serverAuth" : "clientAuth");
  AddExtension(x, authority, NID_authority_key_identifier, "keyid:always");
  AddExtension(x, authority, NID_subject_alt_name, absl::StrCat("DNS:", name));
  RequireCertificate(X509_sign(x, authority_key, nullptr) > 0);
  return certificate;
}

std::string Contents(BIO* buffer) {
  char* data = nullptr;
  const long size = BIO_get_mem_data(buffer, &data);
  return std::string(data, static_cast<size_t>(size));
}

std::string ToPem(X509* certificate) {
  Buffer buffer(BIO_new(BIO_s_mem()));
  RequireOpenSsl(PEM_write_bio_X509(buffer.get(), certificate) == 1, "write a certificate or key");
  return Contents(buffer.get());
}

std::string ToPem(EVP_PKEY* key) {
  Buffer buffer(BIO_new(BIO_s_mem()));
  RequireOpenSsl(
      PEM_write_bio_PrivateKey(buffer.get(), key, nullptr, nullptr, 0, nullptr, nullptr) == 1,
      "write a certificate or key");
  return Contents(buffer.get());
}

}  // namespace

Identity MakeIdentity(const Key& channel_key, TlsRole role) {
  Identity identity;
  identity.name = ChannelName(channel_key);
  const KeyPair authority_key = MakeKeyPair(channel_key, "authority");
  const KeyPair leaf_key = MakeKeyPair(channel_key, role == TlsRole::kServer ? "server" : "agent");
  const Certificate authority = MakeAuthority(authority_key.get(), identity.name);
  const Certificate leaf =
      MakeLeaf(leaf_key.get(), role, identity.name, authority.get(), authority_key.get());
  identity.authority_pem = ToPem(authority.get());
  identity.certificate_pem = ToPem(leaf.get());
  identity.private_key_pem = ToPem(leaf_key.get());
  return identity;
}

}  // namespace muster
