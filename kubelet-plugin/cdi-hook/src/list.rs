//! The text of /etc/ld.so.preload, as glibc's ld.so reads it: entries separated by white space and colons, and
//! comments from `#` to the end of the line. Pure code on bytes, because the image may contain any.

/// The list's path in a container.
pub(crate) const LIST: &str = "/etc/ld.so.preload";

/// Returns the text with `library` added, or `None` if it is already listed. The image's own entries come first and
/// keep their bytes. Text after a NUL is dropped, because ld.so reads the list as a C string.
pub(crate) fn with(text: &[u8], library: &str) -> Option<Vec<u8>> {
    let text = text.split(|byte| *byte == 0).next().unwrap_or(text);
    if entries(text).any(|entry| entry == library.as_bytes()) {
        return None;
    }
    let mut merged = text.to_vec();
    // Without a line break, our entry would become part of the last line's comment or entry.
    if !matches!(merged.last(), None | Some(b'\n')) {
        merged.push(b'\n');
    }
    merged.extend_from_slice(library.as_bytes());
    merged.push(b'\n');
    Some(merged)
}

fn entries(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    text.split(|byte| *byte == b'\n')
        .map(|line| line.split(|byte| *byte == b'#').next().unwrap_or(line))
        .flat_map(|line| line.split(|byte| matches!(byte, b' ' | b'\t' | b':')))
        .filter(|entry| !entry.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    const OURS: &str = "/dev/vgpu/.lib/libvgpu-preload.so";

    fn merged(text: &str) -> Option<String> {
        with(text.as_bytes(), OURS).map(|bytes| String::from_utf8(bytes).expect("UTF-8"))
    }

    #[test]
    fn the_images_entries_stay_before_ours() {
        assert_eq!(merged("").as_deref(), Some("/dev/vgpu/.lib/libvgpu-preload.so\n"));
        assert_eq!(
            merged("/a.so\n").as_deref(),
            Some("/a.so\n/dev/vgpu/.lib/libvgpu-preload.so\n")
        );
        assert_eq!(
            merged("/a.so /b.so").as_deref(),
            Some("/a.so /b.so\n/dev/vgpu/.lib/libvgpu-preload.so\n")
        );
        assert_eq!(
            merged("# none").as_deref(),
            Some("# none\n/dev/vgpu/.lib/libvgpu-preload.so\n")
        );
    }

    #[test]
    fn an_entry_is_added_once() {
        for text in [
            OURS.to_owned(),
            format!("{OURS}\n"),
            format!("/a.so:{OURS}"),
            format!("a\t{OURS} # ours"),
        ] {
            assert_eq!(merged(&text), None, "{text:?}");
        }
        let once = merged("/a.so").expect("added");
        assert_eq!(merged(&once), None);
    }

    #[test]
    fn what_only_looks_like_the_entry_is_none() {
        for text in [
            format!("# {OURS}\n"),
            format!("{OURS}.old"),
            format!("/x{OURS}"),
            format!("/a.so#{OURS}\n"),
        ] {
            assert!(merged(&text).is_some(), "{text:?}");
        }
    }

    #[test]
    fn any_bytes_are_kept() {
        let text = b"\xff\x01/a.so\r\n";
        assert_eq!(with(text, "/b.so").expect("added"), b"\xff\x01/a.so\r\n/b.so\n");
    }

    #[test]
    fn nothing_after_a_nul_counts() {
        for (text, expected) in [
            (format!("\0{OURS}\n"), format!("{OURS}\n")),
            ("\0".to_owned(), format!("{OURS}\n")),
            (format!("/a.so\n\0\n{OURS}\n"), format!("/a.so\n{OURS}\n")),
            (format!("/a.so\0:{OURS}"), format!("/a.so\n{OURS}\n")),
            (format!("# \0\n{OURS}\n"), format!("# \n{OURS}\n")),
        ] {
            assert_eq!(merged(&text), Some(expected), "{text:?}");
        }
        // An entry of ours before the NUL is effective.
        assert_eq!(merged(&format!("{OURS}\n\0/a.so")), None);
    }
}
