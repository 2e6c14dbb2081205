//! OCI image layouts as tar archives (image-spec 1.1: image-layout.md, manifest.md, config.md).

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufWriter, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use vgpu_abi::arch;

/// The image's labels: `org.opencontainers.image.*` and their values.
pub(super) type Labels = BTreeMap<String, String>;

/// The label that is also a field of the configuration, as RFC 3339.
pub(super) const CREATED: &str = "org.opencontainers.image.created";
const INDEX: &str = "application/vnd.oci.image.index.v1+json";
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";

/// A layer on disk: an uncompressed tar, and its digest.
#[derive(Debug, Clone)]
pub(super) struct Layer {
    pub(super) file: PathBuf,
    digest: String,
    size: u64,
}

/// The contents of a layer: paths in the image, without a leading slash.
#[derive(Debug, Default)]
pub struct Contents {
    files: BTreeMap<PathBuf, (PathBuf, u32)>,
    links: BTreeMap<PathBuf, PathBuf>,
    folders: BTreeMap<PathBuf, u32>,
}

impl Contents {
    #[must_use]
    pub fn file(mut self, from: impl Into<PathBuf>, to: &str, mode: u32) -> Self {
        self.files.insert(to.into(), (from.into(), mode));
        self
    }

    #[must_use]
    pub fn link(mut self, target: &str, name: &str) -> Self {
        self.links.insert(name.into(), target.into());
        self
    }

    pub(super) fn folder(mut self, name: &str, mode: u32) -> Self {
        self.folders.insert(name.into(), mode);
        self
    }

    /// Adds everything below a folder. Packages contain no devices and sockets.
    pub(super) fn tree(mut self, root: &Path) -> Result<Self> {
        self.add(root, Path::new(""))?;
        Ok(self)
    }

    fn add(&mut self, root: &Path, at: &Path) -> Result<()> {
        let folder = root.join(at);
        for entry in fs::read_dir(&folder).with_context(|| format!("cannot read {}", folder.display()))? {
            let entry = entry.with_context(|| format!("cannot read {}", folder.display()))?;
            let name = at.join(entry.file_name());
            let metadata = entry
                .metadata()
                .with_context(|| format!("cannot read {}", entry.path().display()))?;
            if metadata.is_symlink() {
                self.links.insert(name, fs::read_link(entry.path())?);
            } else if metadata.is_dir() {
                self.folders
                    .insert(name.clone(), metadata.permissions().mode() & 0o7777);
                self.add(root, &name)?;
            } else if metadata.is_file() {
                self.files
                    .insert(name, (entry.path(), metadata.permissions().mode() & 0o7777));
            }
        }
        Ok(())
    }

    /// Writes the layer: sorted, owned by root, without times, so that equal contents have the same digest.
    pub(super) fn write(mut self, to: &Path) -> Result<Layer> {
        let named: Vec<PathBuf> = self.files.keys().chain(self.links.keys()).cloned().collect();
        for parent in named
            .iter()
            .flat_map(|name| name.ancestors().skip(1))
            .filter(|p| !p.as_os_str().is_empty())
        {
            if !self.links.contains_key(parent) {
                self.folders.entry(parent.to_path_buf()).or_insert(0o755);
            }
        }
        let file = File::create(to).with_context(|| format!("cannot create {}", to.display()))?;
        let mut archive = tar::Builder::new(BufWriter::new(file));
        for (name, mode) in &self.folders {
            let mut header = header(tar::EntryType::Directory, *mode, 0);
            archive
                .append_data(&mut header, name, io::empty())
                .with_context(|| format!("cannot add {}", name.display()))?;
        }
        for (name, target) in &self.links {
            let mut header = header(tar::EntryType::Symlink, 0o777, 0);
            archive
                .append_link(&mut header, name, target)
                .with_context(|| format!("cannot add {}", name.display()))?;
        }
        for (name, (from, mode)) in &self.files {
            let source = File::open(from).with_context(|| format!("cannot open {}", from.display()))?;
            let size = source.metadata()?.len();
            let mut header = header(tar::EntryType::Regular, *mode, size);
            archive
                .append_data(&mut header, name, source)
                .with_context(|| format!("cannot add {}", name.display()))?;
        }
        archive
            .into_inner()?
            .flush()
            .with_context(|| format!("cannot write {}", to.display()))?;
        Layer::of(to)
    }
}

fn header(kind: tar::EntryType, mode: u32, size: u64) -> tar::Header {
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_size(size);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header
}

impl Layer {
    /// Reads the digest from the file beside it, or computes and stores it.
    pub(super) fn of(file: &Path) -> Result<Self> {
        let mut opened = File::open(file).with_context(|| format!("cannot open {}", file.display()))?;
        let size = opened.metadata()?.len();
        let mut hash = Sha256::new();
        let mut buffer = vec![0; 1 << 20];
        loop {
            match opened
                .read(&mut buffer)
                .with_context(|| format!("cannot read {}", file.display()))?
            {
                0 => break,
                read => hash.update(&buffer[..read]),
            }
        }
        Ok(Self {
            file: file.to_path_buf(),
            digest: hex(&hash.finalize()),
            size,
        })
    }

    /// Returns the layer if its digest was stored.
    pub(super) fn cached(file: &Path) -> Result<Option<Self>> {
        let (Ok(digest), Ok(metadata)) = (fs::read_to_string(file.with_extension("sha256")), fs::metadata(file)) else {
            return Ok(None);
        };
        Ok(Some(Self {
            file: file.to_path_buf(),
            digest,
            size: metadata.len(),
        }))
    }

    /// Stores the digest, which marks the layer as complete.
    pub(super) fn remember(&self) -> Result<()> {
        let file = self.file.with_extension("sha256");
        fs::write(&file, &self.digest).with_context(|| format!("cannot write {}", file.display()))
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Writes an image with the layers of the archive `below` and the layer `top` on them. Unpacks the archive to `work`.
pub(super) fn on_top(below: &Path, name: &str, top: Contents, work: &Path, to: &Path) -> Result<()> {
    let opened = File::open(below).with_context(|| format!("cannot open {}", below.display()))?;
    let unpacked = tar::Archive::new(opened).unpack(work);
    unpacked.with_context(|| format!("cannot unpack {}", below.display()))?;
    let document = |path: PathBuf| -> Result<Value> {
        let text = fs::read(&path).with_context(|| format!("{} has no {}", below.display(), path.display()))?;
        serde_json::from_slice(&text).with_context(|| format!("{} is no JSON", path.display()))
    };
    let hash = |descriptor: &Value| descriptor["digest"].as_str().unwrap_or_default().replace("sha256:", "");
    let blob = |descriptor: &Value| work.join("blobs/sha256").join(hash(descriptor));
    let mut manifest = document(work.join("index.json"))?;
    while !manifest["manifests"][0].is_null() {
        manifest = document(blob(&manifest["manifests"][0]))?;
    }
    let config = document(blob(&manifest["config"]))?;
    let mut layers: Vec<Layer> = list(&manifest["layers"])
        .map(|layer| Layer {
            file: blob(layer),
            digest: hash(layer),
            size: layer["size"].as_u64().unwrap_or_default(),
        })
        .collect();
    layers.push(top.write(&work.join("top.tar"))?);
    let entrypoint: Vec<&str> = list(&config["config"]["Entrypoint"])
        .filter_map(Value::as_str)
        .collect();
    let labels = serde_json::from_value(config["config"]["Labels"].clone()).unwrap_or_default();
    archive(name, &[Platform::own(layers)], &entrypoint, &labels, to).map(drop)
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

/// The image for one architecture: its layers, bottom first.
#[derive(Debug, Clone)]
pub(super) struct Platform {
    /// OCI's name of the architecture.
    pub(super) architecture: &'static str,
    pub(super) layers: Vec<Layer>,
}

impl Platform {
    /// The image for this machine.
    pub(super) fn own(layers: Vec<Layer>) -> Self {
        Self {
            architecture: arch!(oci),
            layers,
        }
    }
}

/// Writes an image under a temporary name, and renames it when it is complete. Returns the digest of its index, which
/// names the image in a registry.
///
/// The image is an index also if it has one platform, so that another one can be added without a change for whoever pulls
/// it. `labels` are labels of each configuration, and annotations of manifests and index.
pub(super) fn archive(
    name: &str,
    platforms: &[Platform],
    entrypoint: &[&str],
    labels: &Labels,
    to: &Path,
) -> Result<String> {
    let (layout, documents) = documents(name, platforms, entrypoint, labels);
    let work = to.with_extension("part");
    let file = File::create(&work).with_context(|| format!("cannot create {}", work.display()))?;
    let mut archive = tar::Builder::new(BufWriter::new(file));
    let mut text = |path: &str, text: &str| {
        let mut header = header(tar::EntryType::Regular, 0o644, text.len() as u64);
        archive.append_data(&mut header, path, text.as_bytes())
    };
    text("oci-layout", r#"{"imageLayoutVersion":"1.0.0"}"#)?;
    text("index.json", &layout)?;
    for document in &documents {
        text(&format!("blobs/sha256/{}", hex(&Sha256::digest(document))), document)?;
    }
    let mut written: Vec<&str> = Vec::new();
    for layer in platforms.iter().flat_map(|platform| &platform.layers) {
        if written.contains(&layer.digest.as_str()) {
            continue;
        }
        let source = File::open(&layer.file).with_context(|| format!("cannot open {}", layer.file.display()))?;
        let mut header = header(tar::EntryType::Regular, 0o644, layer.size);
        archive.append_data(&mut header, format!("blobs/sha256/{}", layer.digest), source)?;
        written.push(&layer.digest);
    }
    archive
        .into_inner()?
        .flush()
        .with_context(|| format!("cannot write {}", work.display()))?;
    fs::rename(&work, to).with_context(|| format!("cannot rename {}", work.display()))?;
    let index = documents.last().map(Sha256::digest).unwrap_or_default();
    Ok(format!("sha256:{}", hex(&index)))
}

/// The layout's index.json, and the image's documents: configuration and manifest of each platform, and the index.
fn documents(name: &str, platforms: &[Platform], entrypoint: &[&str], labels: &Labels) -> (String, Vec<String>) {
    let (mut documents, mut entries) = (Vec::new(), Vec::new());
    for platform in platforms {
        let (config, manifest) = platform_documents(platform, entrypoint, labels);
        let mut entry = descriptor_of(MANIFEST, &manifest);
        entry["platform"] = json!({"architecture": platform.architecture, "os": "linux"});
        entries.push(entry);
        documents.extend([config, manifest]);
    }
    let mut index = json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": entries});
    annotate(&mut index, labels);
    let index = index.to_string();
    let mut entry = descriptor_of(INDEX, &index);
    let tag = name.rsplit_once(':').map_or(name, |(_, tag)| tag);
    // Names for `ctr images import`, and for programs that read OCI layouts.
    entry["annotations"] = json!({"io.containerd.image.name": name, "org.opencontainers.image.ref.name": tag});
    let layout = json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": [entry]}).to_string();
    documents.push(index);
    (layout, documents)
}

/// The configuration and the manifest of an image.
fn platform_documents(platform: &Platform, entrypoint: &[&str], labels: &Labels) -> (String, String) {
    let layers = &platform.layers;
    let mut config = json!({
        "architecture": platform.architecture,
        "os": "linux",
        "config": {"Entrypoint": entrypoint, "Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"]},
        "rootfs": {"type": "layers", "diff_ids": layers.iter().map(|l| format!("sha256:{}", l.digest)).collect::<Vec<_>>()},
    });
    if let Some(created) = labels.get(CREATED) {
        config["created"] = json!(created);
    }
    if !labels.is_empty() {
        config["config"]["Labels"] = json!(labels);
    }
    let config = config.to_string();
    let layer_type = "application/vnd.oci.image.layer.v1.tar";
    let mut manifest = json!({
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": descriptor_of("application/vnd.oci.image.config.v1+json", &config),
        "layers": layers.iter().map(|layer| descriptor(layer_type, &layer.digest, layer.size)).collect::<Vec<_>>(),
    });
    annotate(&mut manifest, labels);
    (config, manifest.to_string())
}

fn annotate(document: &mut Value, labels: &Labels) {
    if !labels.is_empty() {
        document["annotations"] = json!(labels);
    }
}

fn descriptor_of(kind: &str, document: &str) -> Value {
    descriptor(kind, &hex(&Sha256::digest(document)), document.len() as u64)
}

fn descriptor(kind: &str, digest: &str, size: u64) -> Value {
    json!({"mediaType": kind, "digest": format!("sha256:{digest}"), "size": size})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_contents_give_the_same_layer_and_every_blob_is_there_under_its_digest() {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("program");
        fs::write(&program, "x").unwrap();
        let layer = |name: &str| {
            Contents::default()
                .file(&program, "usr/bin/program", 0o755)
                .link("usr/bin", "bin")
                .write(&folder.path().join(name))
                .unwrap()
        };
        let (first, second) = (layer("1.tar"), layer("2.tar"));
        assert_eq!(first.digest, second.digest);

        let image = folder.path().join("image.tar");
        let labels = Labels::from([(CREATED.to_owned(), "2026-11-28T00:00:00Z".to_owned())]);
        let platforms = ["amd64", "arm64"].map(|architecture| Platform {
            architecture,
            layers: vec![first.clone()],
        });
        let index = archive("docker.io/a/b:dev", &platforms, &["/bin/program"], &labels, &image).unwrap();
        let mut blobs = Vec::new();
        for entry in tar::Archive::new(File::open(&image).unwrap()).entries().unwrap() {
            let mut entry = entry.unwrap();
            let path = entry.path().unwrap().display().to_string();
            let mut bytes = Vec::new();
            entry.read_to_end(&mut bytes).unwrap();
            if let Some(digest) = path.strip_prefix("blobs/sha256/") {
                assert_eq!(digest, hex(&Sha256::digest(&bytes)));
                blobs.push((
                    digest.to_owned(),
                    serde_json::from_slice::<Value>(&bytes).unwrap_or_default(),
                ));
            }
        }
        assert_eq!(
            blobs.len(),
            6,
            "configuration and manifest of each platform, index, layer"
        );
        let document = |digest: &Value| {
            let digest = digest.as_str().unwrap().replace("sha256:", "");
            blobs.iter().find(|(name, _)| *name == digest).unwrap().1.clone()
        };
        let index = document(&json!(index));
        assert_eq!(index["annotations"], json!(labels));
        for (entry, architecture) in list(&index["manifests"]).zip(["amd64", "arm64"]) {
            let manifest = document(&entry["digest"]);
            let config = document(&manifest["config"]["digest"]);
            assert_eq!(entry["platform"], json!({"architecture": architecture, "os": "linux"}));
            assert_eq!(config["architecture"], architecture);
            assert_eq!(manifest["annotations"], json!(labels));
            assert_eq!(config["config"]["Labels"], json!(labels));
            assert_eq!(config["created"], "2026-11-28T00:00:00Z");
        }
    }

    #[test]
    fn an_image_on_top_of_another_has_its_layers_and_entrypoint() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::write(at("program"), "x").unwrap();
        let below = Contents::default().file(at("program"), "usr/bin/program", 0o755);
        archive(
            "docker.io/a/b:dev",
            &[Platform::own(vec![below.write(&at("1.tar")).unwrap()])],
            &["/bin/program"],
            &Labels::new(),
            &at("b.tar"),
        )
        .unwrap();
        let top = Contents::default().link("program", "usr/bin/other");
        on_top(&at("b.tar"), "docker.io/a/c:dev", top, &at("work"), &at("c.tar")).unwrap();

        tar::Archive::new(File::open(at("c.tar")).unwrap())
            .unpack(at("c"))
            .unwrap();
        let read = |path: PathBuf| serde_json::from_slice::<Value>(&fs::read(path).unwrap()).unwrap();
        let blob = |found: &Value| at("c/blobs/sha256").join(found["digest"].as_str().unwrap().replace("sha256:", ""));
        let index = read(at("c/index.json"));
        assert_eq!(
            index["manifests"][0]["annotations"]["io.containerd.image.name"],
            "docker.io/a/c:dev"
        );
        let manifest = read(blob(&read(blob(&index["manifests"][0]))["manifests"][0]));
        assert_eq!(
            read(blob(&manifest["config"]))["config"]["Entrypoint"],
            json!(["/bin/program"])
        );
        let names: Vec<Vec<String>> = list(&manifest["layers"])
            .map(|layer| {
                let mut layer = tar::Archive::new(File::open(blob(layer)).unwrap());
                let entries = layer
                    .entries()
                    .unwrap()
                    .map(|entry| entry.unwrap().path().unwrap().display().to_string());
                entries
                    .filter(|name| !name.ends_with('/') && *name != "usr" && *name != "usr/bin")
                    .collect()
            })
            .collect();
        assert_eq!(names, [["usr/bin/program"], ["usr/bin/other"]]);
    }
}
