//! Reads the objects in files, as kubectl and the API server do.
//!
//! ```text
//!  file ─► parts between lines `---` ─► documents (JSON, one after the other, or YAML) ─► objects, those of Lists one by one
//! ```
//!
//! A document that cannot be read becomes a sentence that names its file and position; the rest of the file is read.

use std::fmt;
use std::io::Read;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde_json::Value;
use vgpu_api::decode::{DecodeError, decode};

/// How deeply Lists may be nested.
const MOST_LISTS: usize = 8;

#[derive(Debug, thiserror::Error)]
#[error("{}: {source}", .file.display())]
pub(super) struct FileError {
    file: PathBuf,
    source: std::io::Error,
}

/// An object of a file or of a cluster.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Object {
    pub(super) place: Place,
    pub(super) value: Value,
}

/// Where an object was given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    /// The file's name, or the cluster.
    pub(super) origin: String,
    /// `document 2`, `document 2, items[0]`.
    within: String,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.origin, self.within)
    }
}

/// The objects of files, and the documents that cannot be read.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Documents {
    pub(super) objects: Vec<Object>,
    /// A sentence for each document that cannot be read.
    pub(super) failed: Vec<String>,
}

impl Documents {
    /// Reads files; `-` is standard input.
    pub(super) fn read(files: &[PathBuf]) -> Result<Self, FileError> {
        let mut read = Self::default();
        for file in files {
            let mut text = String::new();
            let result = if file == Path::new("-") {
                std::io::stdin().read_to_string(&mut text)
            } else {
                std::fs::File::open(file).and_then(|mut open| open.read_to_string(&mut text))
            };
            result.map_err(|source| FileError {
                file: file.to_owned(),
                source,
            })?;
            read.add_text(&text, &file.display().to_string());
        }
        Ok(read)
    }

    fn add_text(&mut self, text: &str, origin: &str) {
        let mut number = 0;
        for (line, part) in parts(text.trim_start_matches('\u{feff}')) {
            let (documents, error) = parse(part, line);
            let documents = documents.into_iter().map(Ok).chain(error.map(Err));
            for document in documents.filter(|document| !matches!(document, Ok(Value::Null))) {
                number += 1;
                let place = Place {
                    origin: origin.to_owned(),
                    within: format!("document {number}"),
                };
                match document {
                    Ok(document) => self.add(document, place, 0),
                    Err(why) => self.failed.push(format!("{place}: {why}")),
                }
            }
        }
    }

    /// Adds a List as the API server answers it.
    pub(super) fn add_list(&mut self, list: Value) {
        let place = Place {
            origin: "the cluster".to_owned(),
            within: "a list".to_owned(),
        };
        self.add(list, place, 0);
    }

    fn add(&mut self, mut document: Value, place: Place, depth: usize) {
        let kind = document["kind"].as_str().unwrap_or_default().to_owned();
        if kind.is_empty() {
            let found = match &document {
                Value::Object(_) => "has no kind; write apiVersion and kind",
                Value::Array(_) => {
                    "is a list, not an object; write apiVersion: v1, kind: List and the list as its items"
                }
                _ => "is a single value, not an object with apiVersion and kind",
            };
            return self.failed.push(format!("{place} {found}"));
        }
        let items = document.get_mut("items").map(Value::take);
        let items = match (kind.strip_suffix("List"), items) {
            (Some(_), Some(Value::Array(items))) => items,
            (Some(_), Some(Value::Null)) => Vec::new(),
            (Some(""), _) => {
                return self
                    .failed
                    .push(format!("{place}: a List has no items; write items: [...]"));
            }
            (_, items) => {
                if let Some(items) = items {
                    document["items"] = items;
                }
                return self.objects.push(Object { place, value: document });
            }
        };
        if depth >= MOST_LISTS {
            return self
                .failed
                .push(format!("{place}: lists lie in lists more than {MOST_LISTS} deep"));
        }
        let of = kind.trim_end_matches("List");
        for (at, mut item) in items.into_iter().enumerate() {
            // The items of a PodList have no kind of their own.
            if let (Value::Object(item), false) = (&mut item, of.is_empty()) {
                item.entry("kind").or_insert_with(|| of.into());
                item.entry("apiVersion")
                    .or_insert_with(|| document["apiVersion"].clone());
            }
            let within = format!("{}, items[{at}]", place.within);
            let origin = place.origin.clone();
            self.add(item, Place { origin, within }, depth + 1);
        }
    }
}

impl Object {
    /// `Deployment team/train`, or the object's position if it has no name.
    pub(super) fn name(&self) -> String {
        let kind = self.value["kind"].as_str().unwrap_or_default();
        let of = |field: &str| self.value["metadata"][field].as_str().unwrap_or_default();
        let name = match of("name") {
            "" => of("generateName"),
            name => name,
        };
        match (of("namespace"), name) {
            (_, "") => format!("{}, {kind}", self.place.within),
            ("", name) => format!("{kind} {name}"),
            (namespace, name) => format!("{kind} {namespace}/{name}"),
        }
    }

    /// Prefixes an error with the file and the object.
    pub(super) fn blame(&self, why: impl fmt::Display) -> String {
        format!("{}: {}: {why}", self.place.origin, self.name())
    }

    /// Decodes the part of the object at a JSON pointer.
    pub(super) fn decode<T: DeserializeOwned>(&self, pointer: &str) -> Result<T, DecodeError> {
        let part = self.value.pointer(pointer).unwrap_or(&Value::Null);
        let parent = pointer.trim_start_matches('/').replace('/', ".");
        decode(part).map_err(|error| error.below(&parent))
    }
}

/// The parts of a text between lines `---`, with the number of lines before each.
fn parts(text: &str) -> Vec<(usize, &str)> {
    let mut parts = Vec::new();
    let (mut start, mut start_line, mut at) = (0, 0, 0);
    for (number, line) in text.split_inclusive('\n').enumerate() {
        if let Some(rest) = line.strip_prefix("---")
            && (rest.is_empty() || rest.starts_with(char::is_whitespace))
        {
            parts.push((start_line, &text[start..at]));
            // A document may begin on the line itself.
            (start, start_line) = (at + "---".len(), number);
        }
        at += line.len();
    }
    parts.push((start_line, &text[start..]));
    let is_content = |line: &str| !line.trim().is_empty() && !line.starts_with(['#', '%']) && line.trim() != "...";
    parts.retain(|(_, part)| part.lines().any(is_content));
    parts
}

/// Reads the documents of one part of a text, up to a mistake.
fn parse(part: &str, line: usize) -> (Vec<Value>, Option<String>) {
    let start = part.trim_start();
    let inner = start.strip_prefix('{').map(str::trim_start);
    // JSON is also YAML, but the YAML parser has worse errors and is slower.
    if start.starts_with('[') || inner.is_some_and(|inner| inner.starts_with(['"', '}'])) {
        let (documents, error) = json(part, line);
        if error.is_none() {
            return (documents, None);
        }
        // A flow mapping of YAML may begin like JSON.
        return yaml(part, line).map_or((documents, error), |documents| (documents, None));
    }
    match yaml(part, line) {
        Ok(documents) => (documents, None),
        Err(error) => (Vec::new(), Some(error)),
    }
}

fn json(part: &str, line: usize) -> (Vec<Value>, Option<String>) {
    let mut documents = Vec::new();
    for document in serde_json::Deserializer::from_str(part).into_iter() {
        match document {
            Ok(document) => documents.push(document),
            Err(error) => {
                let why = error.to_string();
                let (at, column) = (error.line(), error.column());
                let why = why.trim_end_matches(&format!(" at line {at} column {column}"));
                return (
                    documents,
                    Some(format!("not JSON: line {} column {column}: {why}", line + at)),
                );
            }
        }
    }
    (documents, None)
}

fn yaml(part: &str, line: usize) -> Result<Vec<Value>, String> {
    // The objects of a whole cluster exceed the parser's default limits for a configuration file. Kubernetes reads
    // YAML 1.1, in which 0644 is octal.
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_documents: 1_000_000,
            max_events: 500_000_000,
            max_nodes: 200_000_000,
            max_total_scalar_bytes: 1 << 32,
            enforce_alias_anchor_ratio: false,
        },
        legacy_octal_numbers: true,
        with_snippet: false,
    };
    serde_saphyr::from_multiple_with_options(part, options).map_err(|error| {
        let rendered = error.render_with_options(serde_saphyr::render_options! {
            formatter: &serde_saphyr::UserMessageFormatter,
            line_offset: line as u64,
        });
        format!("not YAML: {}", rendered.lines().next().unwrap_or_default())
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// The objects' names, and what cannot be read.
    fn read(text: &str) -> (Vec<String>, Vec<String>) {
        let mut documents = Documents::default();
        documents.add_text(text, "f");
        let names = documents.objects.iter().map(Object::name).collect();
        (names, documents.failed)
    }

    fn object(text: &str) -> Value {
        let mut documents = Documents::default();
        documents.add_text(text, "f");
        assert_eq!(documents.failed, [""; 0], "{text}");
        documents.objects.remove(0).value
    }

    #[test]
    fn every_way_to_write_objects_is_read() {
        for (text, names) in [
            ("", &[][..]),
            ("# a comment\n---\n\n---\n# another\n", &[]),
            ("kind: A\nmetadata: {name: a, namespace: ns}\n", &["A ns/a"]),
            ("\u{feff}kind: A\nmetadata: {generateName: a-}\n", &["A a-"]),
            (
                "%YAML 1.1\n---\nkind: A\n--- # two\n\nkind: B\n...\n---\r\nkind: C\n---",
                &["document 1, A", "document 2, B", "document 3, C"],
            ),
            ("--- {kind: A}\n---\t{kind: B}\n", &["document 1, A", "document 2, B"]),
            ("{kind: A}", &["document 1, A"]),
            (r#"{"kind": "A"}{"kind": "B"}"#, &["document 1, A", "document 2, B"]),
            ("{\"kind\": \"A\"}\n---\nkind: B\n", &["document 1, A", "document 2, B"]),
            (r#"{"kind": A}"#, &["document 1, A"]),
            (
                "kind: List\nitems: [{kind: A, metadata: {name: a}}, {kind: List, items: [{kind: B}]}]\n",
                &["A a", "document 1, items[1], items[0], B"],
            ),
            ("kind: PodList\nitems: null\n", &[]),
            ("kind: PodList\nitems: [{metadata: {name: a}}]\n", &["Pod a"]),
            // Custom resources that are no lists.
            ("kind: AllowList\nmetadata: {name: a}\n", &["AllowList a"]),
            ("kind: Queue\nmetadata: {name: a}\nitems: []\n", &["Queue a"]),
        ] {
            let names: Vec<String> = names.iter().map(ToString::to_string).collect();
            assert_eq!(read(text), (names, Vec::new()), "{text}");
        }
    }

    #[test]
    fn what_cannot_be_read_is_named_and_the_rest_is_read() {
        let deep = format!("{}{{}}{}", r#"{"kind": "List", "items": ["#.repeat(10), "]}".repeat(10));
        for (text, names, said) in [
            ("[1]", &[][..], "f: document 1 is a list, not an object"),
            ("a: 1", &[], "f: document 1 has no kind; write apiVersion and kind"),
            ("5", &[], "f: document 1 is a single value"),
            (
                "kind: List",
                &[],
                "f: document 1: a List has no items; write items: [...]",
            ),
            (
                "kind: A\n---\nkind: [B\n---\nkind: C\n",
                &["document 1, A", "document 3, C"],
                "f: document 2: not YAML: ",
            ),
            (
                "kind: A\n---\na: 1\na: 2\n",
                &["document 1, A"],
                "f: document 2: not YAML: duplicate mapping key `a` is not allowed here at line 4, column 1",
            ),
            (
                "kind: A\n---\n{\"kind\":\n ]",
                &["document 1, A"],
                "f: document 2: not JSON: line 4 column 2: expected value",
            ),
            (
                r#"{"kind": "A"} {"kind": }"#,
                &["document 1, A"],
                "f: document 2: not JSON: line 1 column 24: ",
            ),
            (
                "kind: List\nitems: [{kind: A}, {kind: 5}, x]",
                &["document 1, items[0], A"],
                "f: document 1, items[1] has no kind",
            ),
            (&deep, &[], "lists lie in lists more than 8 deep"),
        ] {
            let (found, failed) = read(text);
            assert_eq!(found, names, "{text}");
            assert!(failed[0].contains(said), "{text}: {failed:?}");
        }
    }

    /// Values are read like kubectl's YAML 1.1.
    #[test]
    fn scalars_are_those_of_kubernetes() {
        for (written, read) in [
            ("0644", json!(0o644)),
            ("0x10", json!(16)),
            ("yes", json!(true)),
            ("'yes'", json!("yes")),
            ("1e3", json!(1000.0)),
            ("20Gi", json!("20Gi")),
            ("~", Value::Null),
            ("2026-11-27", json!("2026-11-27")),
        ] {
            assert_eq!(object(&format!("kind: A\nx: {written}\n"))["x"], read, "{written}");
        }
        assert_eq!(object("kind: A\n1: x\n")["1"], "x");
    }

    #[test]
    fn an_error_names_the_field_as_the_file_has_it() {
        let text = "kind: D\nmetadata: {name: d}\nspec: {template: {metadata: {annotations: {a.b/c: 5}}}}\n";
        let object = Object {
            place: Place {
                origin: "f".to_owned(),
                within: String::new(),
            },
            value: object(text),
        };
        let error = object.decode::<vgpu_dialects::Pod>("/spec/template").unwrap_err();
        assert_eq!(
            object.blame(error),
            "f: D d: spec.template.metadata.annotations[a.b/c]: 5 is not a text; write it in quotes: \"5\""
        );
    }
}
