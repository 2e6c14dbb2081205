//! The cluster's certificates: one authority, a server, and a client for each component.

use std::fs;
use std::net::IpAddr;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;

use anyhow::{Context, Result};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    SanType,
};

use super::config::{API_ADDRESS, Node, State};

/// Clients: file name, user, group. Every possible node has a certificate, because nodes may be added later.
fn clients() -> Vec<(String, String, Option<&'static str>)> {
    let control_plane = [
        ("admin", "admin", Some("system:masters")),
        ("scheduler", "system:kube-scheduler", None),
        ("controller-manager", "system:kube-controller-manager", None),
    ];
    let control_plane = control_plane.map(|(file, user, group)| (file.to_owned(), user.to_owned(), group));
    let kubelet = |node: Node| {
        (
            node.name(),
            format!("system:node:{}", node.name()),
            Some("system:nodes"),
        )
    };
    control_plane.into_iter().chain(Node::all().map(kubelet)).collect()
}

/// The API server's certificate.
fn server() -> Result<CertificateParams> {
    let mut server = CertificateParams::new(
        [
            "localhost",
            "kubernetes",
            "kubernetes.default",
            "kubernetes.default.svc",
        ]
        .map(str::to_owned),
    )?;
    for address in ["127.0.0.1", API_ADDRESS] {
        server
            .subject_alt_names
            .push(SanType::IpAddress(address.parse::<IpAddr>()?));
    }
    server.distinguished_name.push(DnType::CommonName, "kube-apiserver");
    server.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    Ok(server)
}

/// Writes all keys, certificates and kubeconfigs. The proxy on the host listens on `port`.
pub(super) fn write(state: &State, port: u16) -> Result<()> {
    let folder = state.pki("");
    fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o700)).context("cannot protect the keys")?;

    let ca_key = KeyPair::generate()?;
    let mut ca = CertificateParams::default();
    ca.distinguished_name.push(DnType::CommonName, "vgpu-e2e");
    ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    ca.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
    let ca_certificate = ca.self_signed(&ca_key)?.pem();
    fs::write(state.pki("ca.crt"), &ca_certificate).context("cannot write ca.crt")?;
    let issuer = Issuer::new(ca, ca_key);

    issue(state, "apiserver", server()?, &issuer)?;

    for (file, user, group) in clients() {
        let mut client = CertificateParams::default();
        client.distinguished_name.push(DnType::CommonName, user);
        if let Some(group) = group {
            client.distinguished_name.push(DnType::OrganizationName, group);
        }
        client.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let (certificate, key) = issue(state, &file, client, &issuer)?;
        let inside = kubeconfig(
            &format!("https://{API_ADDRESS}:443"),
            &ca_certificate,
            &certificate,
            &key,
        );
        private(&state.component_kubeconfig(&file), &inside)?;
        if file == "admin" {
            private(
                &state.kubeconfig(),
                &kubeconfig(
                    &format!("https://127.0.0.1:{port}"),
                    &ca_certificate,
                    &certificate,
                    &key,
                ),
            )?;
        }
    }

    let accounts = KeyPair::generate()?;
    private(&state.pki("service-accounts.key"), &accounts.serialize_pem())?;
    fs::write(state.pki("service-accounts.pub"), accounts.public_key_pem()).context("cannot write the public key")
}

fn issue(
    state: &State,
    name: &str,
    mut of: CertificateParams,
    issuer: &Issuer<'_, KeyPair>,
) -> Result<(String, String)> {
    let key = KeyPair::generate()?;
    of.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    let certificate = of.signed_by(&key, issuer)?.pem();
    fs::write(state.pki(&format!("{name}.crt")), &certificate).with_context(|| format!("cannot write {name}.crt"))?;
    private(&state.pki(&format!("{name}.key")), &key.serialize_pem())?;
    Ok((certificate, key.serialize_pem()))
}

fn private(file: &Path, text: &str) -> Result<()> {
    let written = fs::File::options()
        .create(true)
        .truncate(true)
        .write(true)
        .mode(0o600)
        .open(file);
    let mut written = written.with_context(|| format!("cannot create {}", file.display()))?;
    std::io::Write::write_all(&mut written, text.as_bytes()).with_context(|| format!("cannot write {}", file.display()))
}

/// A kubeconfig with embedded certificates, so that it can be copied. JSON is valid YAML.
fn kubeconfig(server: &str, ca: &str, certificate: &str, key: &str) -> String {
    serde_json::json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "vgpu-e2e", "cluster": {"server": server, "certificate-authority-data": base64(ca)}}],
        "users": [{"name": "vgpu-e2e", "user": {"client-certificate-data": base64(certificate), "client-key-data": base64(key)}}],
        "contexts": [{"name": "vgpu-e2e", "context": {"cluster": "vgpu-e2e", "user": "vgpu-e2e"}}],
        "current-context": "vgpu-e2e",
    })
    .to_string()
}

fn base64(text: &str) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::with_capacity(text.len().div_ceil(3) * 4);
    for chunk in text.as_bytes().chunks(3) {
        let word = chunk.iter().fold(0u32, |word, &byte| word << 8 | u32::from(byte)) << (8 * (3 - chunk.len()));
        for place in 0..4 {
            let digit = DIGITS[(word >> (18 - 6 * place) & 63) as usize];
            out.push(if place > chunk.len() { '=' } else { digit.into() });
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_agrees_with_rfc_4648() {
        for (plain, coded) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("foobar", "Zm9vYmFy"),
        ] {
            assert_eq!(base64(plain), coded);
        }
    }

    #[test]
    fn keys_are_readable_by_their_owner_alone() {
        let folder = tempfile::tempdir().unwrap();
        let state = State(folder.path().to_path_buf());
        write(&state, 6443).unwrap();
        for file in [
            state.kubeconfig(),
            state.pki("apiserver.key"),
            state.pki("service-accounts.key"),
        ] {
            assert_eq!(
                fs::metadata(&file).unwrap().permissions().mode() & 0o777,
                0o600,
                "{}",
                file.display()
            );
        }
        let config: serde_json::Value = serde_json::from_slice(&fs::read(state.kubeconfig()).unwrap()).unwrap();
        assert_eq!(config["clusters"][0]["cluster"]["server"], "https://127.0.0.1:6443");
    }
}
