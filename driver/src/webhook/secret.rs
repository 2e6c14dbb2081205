//! The Secret that holds the pair in use and, during a rotation, the next one.

use std::collections::BTreeMap;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::certificate::Pair;

/// The keys of the pair in use are those of a TLS Secret.
const CURRENT: [&str; 3] = ["ca.crt", "tls.crt", "tls.key"];
const NEXT: [&str; 3] = ["next-ca.crt", "next-tls.crt", "next-tls.key"];

pub(super) fn current(secret: &Secret) -> Option<Pair> {
    pair(secret, CURRENT)
}

pub(super) fn next(secret: &Secret) -> Option<Pair> {
    pair(secret, NEXT)
}

fn pair(secret: &Secret, [authority, certificate, key]: [&str; 3]) -> Option<Pair> {
    let data = secret.data.as_ref()?;
    let text = |key: &str| String::from_utf8(data.get(key)?.0.clone()).ok();
    Some(Pair {
        authority: text(authority)?,
        certificate: text(certificate)?,
        key: text(key)?,
    })
}

/// The Secret with a new pair in addition to the current one. Makes a new Secret if there is none.
pub(super) fn with_next(secret: Option<Secret>, name: &str, pair: &Pair) -> Secret {
    let mut secret = secret.unwrap_or_else(|| Secret {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            ..ObjectMeta::default()
        },
        ..Secret::default()
    });
    put(secret.data.get_or_insert_default(), NEXT, Some(pair));
    secret
}

/// The Secret with its next pair in use.
pub(super) fn promoted(mut secret: Secret) -> Secret {
    let pair = next(&secret);
    let data = secret.data.get_or_insert_default();
    if let Some(pair) = &pair {
        put(data, CURRENT, Some(pair));
    }
    put(data, NEXT, None);
    secret
}

fn put(data: &mut BTreeMap<String, ByteString>, keys: [&str; 3], pair: Option<&Pair>) {
    let texts = pair.map(|pair| [&pair.authority, &pair.certificate, &pair.key]);
    for (at, key) in keys.into_iter().enumerate() {
        match texts {
            Some(texts) => drop(data.insert(key.to_owned(), ByteString(texts[at].clone().into_bytes()))),
            None => drop(data.remove(key)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn a_pair(name: &str) -> Pair {
        let text = |part: &str| format!("{name} {part}");
        Pair {
            authority: text("ca"),
            certificate: text("crt"),
            key: text("key"),
        }
    }

    #[test]
    fn a_pair_is_next_and_then_in_use() {
        let fresh = with_next(None, "x-webhook", &a_pair("one"));
        assert_eq!(fresh.metadata.name.as_deref(), Some("x-webhook"));
        assert_eq!((current(&fresh), next(&fresh)), (None, Some(a_pair("one"))));
        let first = promoted(fresh);
        assert_eq!((current(&first), next(&first)), (Some(a_pair("one")), None));
        let rotating = with_next(Some(first), "x-webhook", &a_pair("two"));
        assert_eq!(
            (current(&rotating), next(&rotating)),
            (Some(a_pair("one")), Some(a_pair("two")))
        );
        let second = promoted(rotating);
        assert_eq!((current(&second), next(&second)), (Some(a_pair("two")), None));
    }

    /// Helm's labels, the version, and other people's data are kept.
    #[test]
    fn the_rest_of_the_secret_stays() {
        let mut secret = with_next(None, "x-webhook", &a_pair("one"));
        secret.metadata.resource_version = Some("7".into());
        secret.metadata.labels = Some(BTreeMap::from([("a".into(), "b".into())]));
        secret
            .data
            .as_mut()
            .unwrap()
            .insert("note".into(), ByteString(b"mine".to_vec()));
        let after = promoted(secret.clone());
        assert_eq!(after.metadata, secret.metadata);
        assert_eq!(after.data.unwrap()["note"].0, b"mine");
    }

    #[test]
    fn half_a_pair_is_none() {
        let mut secret = promoted(with_next(None, "x", &a_pair("one")));
        secret.data.as_mut().unwrap().remove("tls.key");
        assert_eq!(current(&secret), None);
        assert_eq!(current(&Secret::default()), None);
    }
}
