//! Reads the JSON or YAML documents of a file.

use std::io::Read;
use std::path::{Path, PathBuf};

use serde_json::Value;

#[derive(Debug, thiserror::Error)]
pub(super) enum DocumentError {
    #[error("{}: {source}", .file.display())]
    Read {
        file: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("{}: not JSON: {source}", .file.display())]
    Json {
        file: PathBuf,
        #[source]
        source: serde_json::Error,
    },
    #[error("{}: not YAML: {message}", .file.display())]
    Yaml { file: PathBuf, message: String },
}

/// Reads the documents of a file: JSON documents one after the other, or YAML. `-` is standard input.
pub(super) fn read(file: &Path) -> Result<Vec<Value>, DocumentError> {
    let mut text = String::new();
    let source = if file == Path::new("-") {
        std::io::stdin().read_to_string(&mut text)
    } else {
        std::fs::File::open(file).and_then(|mut open| open.read_to_string(&mut text))
    };
    source.map_err(|source| DocumentError::Read {
        file: file.to_owned(),
        source,
    })?;
    let text = text.trim_start_matches('\u{feff}');
    // JSON is also YAML, but the YAML parser has worse errors and is slower.
    if text.trim_start().starts_with(['{', '[']) {
        let documents = serde_json::Deserializer::from_str(text).into_iter();
        return documents
            .collect::<Result<_, _>>()
            .map_err(|source| DocumentError::Json {
                file: file.to_owned(),
                source,
            });
    }
    // The objects of a whole cluster exceed the parser's default limits for a configuration file.
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_documents: 1_000_000,
            max_events: 500_000_000,
            max_nodes: 200_000_000,
            max_total_scalar_bytes: 1 << 32,
            enforce_alias_anchor_ratio: false,
        },
        with_snippet: false,
    };
    serde_saphyr::from_multiple_with_options(text, options).map_err(|error| DocumentError::Yaml {
        file: file.to_owned(),
        message: error.to_string().lines().next().unwrap_or_default().to_owned(),
    })
}
