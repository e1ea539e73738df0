// The site's configuration of OpenSSL ($OPENSSL_CONF, openssl.cnf), which may leave out the
// providers that have our digests and keys, as `legacy` alone or `fips` that is not there does.
#pragma once

namespace muster {

// Has OpenSSL use its own default providers in this process, TLS included, whatever the site's
// configuration activates. For programs; called before anything else of OpenSSL.
void IgnoreOpenSslConfiguration();

}  // namespace muster
