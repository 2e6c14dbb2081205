//! Pairs of a server certificate and the authority that signed it: issued, read, and made ready for TLS.

use std::fmt;
use std::sync::Arc;

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
};
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::sign::CertifiedKey;
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::FromDer as _;

use super::rotation::{Authority, BACKDATED, LIFETIME, Seconds};

/// All in PEM, as the Secret has it.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Pair {
    pub(super) authority: String,
    pub(super) certificate: String,
    pub(super) key: String,
}

/// Leaves out the key.
impl fmt::Debug for Pair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pair")
            .field("certificate", &self.certificate)
            .finish_non_exhaustive()
    }
}

#[derive(Debug, thiserror::Error)]
pub(super) enum Unusable {
    #[error("the certificate and its key cannot be read: {0}")]
    Pem(#[from] tokio_rustls::rustls::pki_types::pem::Error),
    #[error("the key does not fit to the certificate: {0}")]
    Key(#[from] tokio_rustls::rustls::Error),
    #[error("the certificate or its authority is damaged")]
    Damaged,
    #[error("the certificate is not for {0}")]
    OtherName(String),
    #[error("the certificate is not signed by the authority beside it")]
    NotSigned,
}

/// Issues a pair for this name, valid around `now`.
///
/// # Errors
/// No key can be made, or a certificate cannot have the name.
pub(super) fn issue(host: &str, now: Seconds) -> Result<Pair, rcgen::Error> {
    let signing = KeyPair::generate()?;
    let mut authority = valid(CertificateParams::default(), now);
    // Certificates are matched to their authority partly by its name, so each authority has a different one.
    let name = format!("{host} {}", uuid::Uuid::new_v4());
    authority.distinguished_name.push(DnType::CommonName, name);
    authority.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    authority.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    let signed = authority.self_signed(&signing)?.pem();
    // The key ends with this function: nobody can sign another certificate.
    let issuer = Issuer::new(authority, signing);
    let key = KeyPair::generate()?;
    let mut server = valid(CertificateParams::new([host.to_owned()])?, now);
    server.distinguished_name.push(DnType::CommonName, "vgpu-controller");
    server.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    server.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    Ok(Pair {
        certificate: server.signed_by(&key, &issuer)?.pem(),
        key: key.serialize_pem(),
        authority: signed,
    })
}

fn valid(mut of: CertificateParams, now: Seconds) -> CertificateParams {
    let start = rcgen::date_time_ymd(1970, 1, 1);
    let now = start + std::time::Duration::from_secs(u64::try_from(now).unwrap_or(0));
    (of.not_before, of.not_after) = (now - BACKDATED, now + LIFETIME);
    of.distinguished_name = rcgen::DistinguishedName::new();
    of
}

impl Pair {
    /// The pair in the form that the TLS server needs.
    ///
    /// # Errors
    /// It cannot be read, or key and certificate do not match.
    pub(super) fn certified(&self) -> Result<Arc<CertifiedKey>, Unusable> {
        let chain = CertificateDer::pem_slice_iter(self.certificate.as_bytes()).collect::<Result<Vec<_>, _>>()?;
        let key = PrivateKeyDer::from_pem_slice(self.key.as_bytes())?;
        let certified = CertifiedKey::from_der(chain, key, &ring::default_provider())?;
        certified.keys_match()?;
        Ok(Arc::new(certified))
    }

    /// The authority, if this pair can serve under that name.
    ///
    /// # Errors
    /// The pair cannot serve under that name.
    pub(super) fn authority(&self, host: &str) -> Result<Authority, Unusable> {
        self.certified()?;
        let authority = authorities(&self.authority).pop().ok_or(Unusable::Damaged)?;
        let der = CertificateDer::from_pem_slice(self.certificate.as_bytes())?;
        let (_, certificate) = X509Certificate::from_der(&der).map_err(|_| Unusable::Damaged)?;
        let names = certificate.subject_alternative_name().ok().flatten();
        let is_name = |name: &GeneralName<'_>| matches!(name, GeneralName::DNSName(name) if *name == host);
        if !names.is_some_and(|names| names.value.general_names.iter().any(is_name)) {
            return Err(Unusable::OtherName(host.to_owned()));
        }
        let signer = CertificateDer::from_pem_slice(self.authority.as_bytes())?;
        let (_, signer) = X509Certificate::from_der(&signer).map_err(|_| Unusable::Damaged)?;
        if certificate.issuer() != signer.subject() {
            return Err(Unusable::NotSigned);
        }
        Ok(authority)
    }
}

/// The readable certificates in a caBundle.
pub(super) fn authorities(bundle: &str) -> Vec<Authority> {
    let all = CertificateDer::pem_slice_iter(bundle.as_bytes()).flatten();
    all.filter_map(|der| {
        let (_, certificate) = X509Certificate::from_der(&der).ok()?;
        let validity = certificate.validity();
        Some(Authority {
            pem: pem(&der),
            from: validity.not_before.timestamp(),
            until: validity.not_after.timestamp(),
        })
    })
    .collect()
}

/// The canonical form for comparisons, independent of line ends and comments in a bundle.
fn pem(der: &[u8]) -> String {
    // A ByteString's JSON is its base64.
    let base64 = serde_json::to_string(&k8s_openapi::ByteString(der.to_vec())).unwrap_or_default();
    let mut text = "-----BEGIN CERTIFICATE-----\n".to_owned();
    for line in base64.trim_matches('"').as_bytes().chunks(64) {
        text.push_str(&String::from_utf8_lossy(line));
        text.push('\n');
    }
    text + "-----END CERTIFICATE-----\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOST: &str = "x-webhook.n.svc";
    const NOW: Seconds = 1_800_000_000;

    #[test]
    fn a_pair_that_was_issued_serves_its_name() {
        let pair = issue(HOST, NOW).unwrap();
        let authority = pair.authority(HOST).unwrap();
        assert_eq!(authority.from, NOW - BACKDATED.as_secs() as i64);
        assert_eq!(authority.until, NOW + LIFETIME.as_secs() as i64);
        assert_eq!(authorities(&authority.pem), std::slice::from_ref(&authority));
        let other = pair.authority("y-webhook.n.svc").unwrap_err();
        assert_eq!(other.to_string(), "the certificate is not for y-webhook.n.svc");
        assert!(!format!("{pair:?}").contains("PRIVATE"), "{pair:?}");
    }

    #[test]
    fn parts_of_two_pairs_are_none() {
        let (one, two) = (issue(HOST, NOW).unwrap(), issue(HOST, NOW).unwrap());
        let key = Pair {
            key: two.key.clone(),
            ..one.clone()
        };
        assert!(matches!(key.authority(HOST), Err(Unusable::Key(_))));
        let authority = Pair {
            authority: two.authority.clone(),
            ..one.clone()
        };
        assert!(matches!(authority.authority(HOST), Err(Unusable::NotSigned)));
    }

    #[test]
    fn damaged_parts_are_refused() {
        let good = issue(HOST, NOW).unwrap();
        for damage in [
            "",
            "no certificate",
            "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
        ] {
            for part in 0..3 {
                let mut pair = good.clone();
                *[&mut pair.authority, &mut pair.certificate, &mut pair.key][part] = damage.to_owned();
                assert!(pair.authority(HOST).is_err(), "part {part}: {damage:?}");
            }
        }
    }

    #[test]
    fn a_bundle_is_read_past_what_is_none() {
        let (one, two) = (issue(HOST, NOW).unwrap(), issue(HOST, NOW + 1).unwrap());
        let damaged = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        let bundle = format!(
            "# mine\r\n{}{damaged}\n{}",
            one.authority.replace('\n', "\r\n"),
            two.authority
        );
        let found: Vec<i64> = authorities(&bundle).iter().map(|ca| ca.until).collect();
        let until = NOW + LIFETIME.as_secs() as i64;
        assert_eq!(found, [until, until + 1]);
        assert_eq!(authorities(&bundle)[0].pem, authorities(&one.authority)[0].pem);
    }
}
