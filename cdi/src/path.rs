//! The path of a value in a document, as `devices[0].containerEdits.env[2]`. Formatted only when an error
//! prints it.

use std::fmt;

#[derive(Clone, Copy)]
pub(crate) enum At<'a> {
    Root,
    Field(&'a At<'a>, &'a str),
    Index(&'a At<'a>, usize),
    Key(&'a At<'a>, &'a str),
}

impl<'a> At<'a> {
    pub(crate) fn field(&'a self, name: &'a str) -> At<'a> {
        At::Field(self, name)
    }

    pub(crate) fn index(&'a self, index: usize) -> At<'a> {
        At::Index(self, index)
    }

    pub(crate) fn key(&'a self, key: &'a str) -> At<'a> {
        At::Key(self, key)
    }
}

impl fmt::Display for At<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            At::Root => Ok(()),
            At::Field(At::Root, name) => f.write_str(name),
            At::Field(parent, name) => write!(f, "{parent}.{name}"),
            At::Index(parent, index) => write!(f, "{parent}[{index}]"),
            At::Key(parent, key) => write!(f, "{parent}[{key:?}]"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::At;

    #[test]
    fn prints_as_a_json_path() {
        let root = At::Root;
        let devices = root.field("devices");
        let device = devices.index(3);
        let annotations = device.field("annotations");
        assert_eq!(
            annotations.key("a.b/c").to_string(),
            r#"devices[3].annotations["a.b/c"]"#
        );
    }
}
