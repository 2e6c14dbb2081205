//! Reads from the file of code how much memory its instructions and static variables take, before the driver loads it.
//!
//! | file | counted memory |
//! |---|---|
//! | ELF (a cubin) | the loaded sections, including those without bytes in the file (`__device__` arrays), each aligned; or the segments, if they take more |
//! | PTX | its `.global` and `.const` variables ([`vgpu_ptx`]) |
//! | a fat binary | nothing: it has code for several kinds of GPU, of which the driver loads one, and may be compressed |
//!
//! Only bytes are read that the driver has to read as well: the first bytes until the kind is known, the start of the
//! header with its version, the header, the tables that it names, or text up to its NUL. So the program's memory can be
//! read directly: if that faults, the driver's call would fault too.
//!
//! How it fails: a file that ends early, cannot be read or is of another kind is charged as code of unknown size
//! ([`expected`](super::expected)). The driver may need more than the sections say; the measurement after the call
//! finds that.

use super::expected::Code;
use vgpu_ptx::Variables;

/// Memory or a file from which code is read.
pub trait Bytes {
    /// Reads bytes at `at`. Returns their number, which is less than `into` holds if there are no more.
    fn read(&self, at: u64, into: &mut [u8]) -> usize;

    /// Reads bytes up to a NUL. Returns their number without the NUL.
    fn text(&self, at: u64, into: &mut [u8]) -> usize {
        let read = self.read(at, into);
        let is_end = |byte: &u8| *byte == 0;
        into.iter().take(read).position(is_end).unwrap_or(read)
    }
}

const ELF: &[u8; 4] = b"\x7fELF";
const WRAPPER: &[u8; 4] = &0x4662_43b1_u32.to_le_bytes();
const FAT_BINARY: &[u8; 4] = &0xba55_ed50_u32.to_le_bytes();
/// Size of the parts in which text is read: a multiple of eight bytes.
const PART: usize = 4096;
/// Number of bytes of a fat binary that are part of its fingerprint.
const COMPARED: u64 = 64 << 10;

/// Describes the code at `at`.
pub fn of(bytes: &impl Bytes, at: u64) -> Code {
    if starts_with(bytes, at, WRAPPER) {
        // The kind, the version, and the address of the code.
        let wrapper: [u8; 16] = array(bytes, at);
        return match word(&wrapper, 8) {
            0 => Code::default(),
            behind => one(bytes, behind),
        };
    }
    one(bytes, at)
}

fn one(bytes: &impl Bytes, at: u64) -> Code {
    if starts_with(bytes, at, ELF) {
        elf(bytes, at)
    } else if starts_with(bytes, at, FAT_BINARY) {
        fat_binary(bytes, at)
    } else if begins_as_text(bytes, at) {
        text(bytes, at)
    } else {
        // Only the driver knows the length of this code.
        Code::default()
    }
}

/// Returns true if the first four bytes, or those before a NUL, are text. Reads no further than it has to.
fn begins_as_text(bytes: &impl Bytes, at: u64) -> bool {
    for index in 0..4 {
        match array::<1>(bytes, at.saturating_add(index)) {
            [0] => return true,
            [b'\t'..=b'\r' | b' '..=b'~'] => {}
            _ => return false,
        }
    }
    true
}

/// Reads only up to the first difference: a text may be shorter than `start`.
fn starts_with(bytes: &impl Bytes, at: u64, start: &[u8; 4]) -> bool {
    (0..)
        .zip(start)
        .all(|(index, byte)| array::<1>(bytes, at.saturating_add(index)) == [*byte])
}

fn fat_binary(bytes: &impl Bytes, at: u64) -> Code {
    const VERSION: u64 = 1;
    const HEADER: usize = 16;
    let start: [u8; 8] = array(bytes, at);
    if half(&start, 4) != VERSION || half(&start, 6) < HEADER as u64 {
        return Code::default();
    }
    let head: [u8; HEADER] = array(bytes, at);
    let length = word(&head, 8).saturating_add(half(&head, 6));
    Code {
        fingerprint: fingerprint(length, &[&part(bytes, at, length.min(COMPARED))]),
        ..Code::default()
    }
}

/// Describes an ELF file by its sections and segments.
fn elf(bytes: &impl Bytes, at: u64) -> Code {
    const ALLOCATED: u64 = 2;
    const SHARED: &[u8] = b".nv.shared";
    const SECTION: usize = 64;
    const SEGMENT: usize = 56;
    /// The type of a segment that is loaded.
    const LOADED: u64 = 1;
    /// The driver may place each section at a multiple of this.
    const ALIGNMENT: u64 = 512;
    /// The class of 64-bit files, whose headers are described here.
    const CLASS_64: u8 = 2;
    const CUDA: u64 = 190;
    /// The type of a file that needs no linking.
    const EXECUTABLE: u64 = 2;
    /// Far more than the section names of a cubin take.
    const LONGEST_NAMES: u64 = 16 << 20;
    let identification: [u8; 16] = array(bytes, at);
    if identification.get(4) != Some(&CLASS_64) {
        return Code::default();
    }
    let head: [u8; 64] = array(bytes, at);
    let (size, count, names) = (half(&head, 58), half(&head, 60), half(&head, 62));
    let segments = half(&head, 56);
    let are_segments = segments == 0 || half(&head, 54) == SEGMENT as u64;
    if half(&head, 18) != CUDA || size != SECTION as u64 || !are_segments {
        return Code::default();
    }
    let part_at = |offset: u64, length| part(bytes, at.saturating_add(offset), length);
    let table = part_at(word(&head, 40), count * size);
    let sections = || table.chunks_exact(SECTION);
    let names = sections().nth(names as usize).map_or_else(Vec::new, |names| {
        part_at(word(names, 24), word(names, 32).min(LONGEST_NAMES))
    });
    let is_shared = |name: u64| names.get(name as usize..).is_some_and(|name| name.starts_with(SHARED));
    let loaded = sections().filter(|header| {
        // Shared memory is on the chip.
        word(header, 8) & ALLOCATED != 0 && !is_shared(word(header, 0) & 0xffff_ffff)
    });
    let aligned = |header: &[u8]| {
        let to = word(header, 48).max(ALIGNMENT);
        word(header, 32).checked_next_multiple_of(to).unwrap_or(u64::MAX)
    };
    let in_sections = loaded.map(aligned).fold(0, u64::saturating_add);
    let placed = part_at(word(&head, 32), segments * SEGMENT as u64);
    let in_memory = placed.chunks_exact(SEGMENT);
    let in_memory = in_memory.filter(|header| word(header, 0) & 0xffff_ffff == LOADED);
    let in_segments = in_memory.map(|header| word(header, 40)).fold(0, u64::saturating_add);
    let takes = in_sections.max(in_segments);
    let is_whole = count > 0 && table.len() as u64 == count * size && placed.len() as u64 == segments * SEGMENT as u64;
    Code {
        // Files with the same sections take the same memory.
        fingerprint: fingerprint(takes, &[&head, &table, &names, &placed]),
        bytes: takes,
        is_known: is_whole && half(&head, 16) == EXECUTABLE,
    }
}

/// Describes PTX, the text up to its NUL.
fn text(bytes: &impl Bytes, at: u64) -> Code {
    let mut variables = Variables::default();
    let mut fingerprint = Fingerprint::default();
    let (mut length, mut part) = (0_u64, [0; PART]);
    loop {
        let read = bytes.text(at.saturating_add(length), &mut part);
        let text = part.get(..read).unwrap_or_default();
        text.iter().for_each(|byte| variables.add(*byte));
        fingerprint.add(text);
        length += text.len() as u64;
        if read < PART {
            break;
        }
    }
    Code {
        fingerprint: fingerprint.end(length),
        bytes: variables.end(),
        is_known: false,
    }
}

/// A hash of some parts, each padded to a multiple of eight bytes.
#[derive(Default)]
struct Fingerprint(u64);

impl Fingerprint {
    fn add(&mut self, part: &[u8]) {
        for part in part.chunks(8) {
            let mut eight = [0; 8];
            eight.iter_mut().zip(part).for_each(|(to, from)| *to = *from);
            self.mix(u64::from_le_bytes(eight));
        }
    }

    fn mix(&mut self, word: u64) {
        let mixed = (self.0 ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        self.0 = mixed ^ mixed >> 29;
    }

    /// Returns the fingerprint. `length`: the length of all that the fingerprint identifies.
    fn end(mut self, length: u64) -> u64 {
        self.mix(length);
        self.0
    }
}

fn fingerprint(length: u64, parts: &[&[u8]]) -> u64 {
    let mut fingerprint = Fingerprint::default();
    parts.iter().for_each(|part| fingerprint.add(part));
    fingerprint.end(length)
}

/// Reads an array. Missing bytes are 0.
fn array<const N: usize>(bytes: &impl Bytes, at: u64) -> [u8; N] {
    let mut into = [0; N];
    let read = bytes.read(at, &mut into);
    into.iter_mut().skip(read).for_each(|byte| *byte = 0);
    into
}

/// Returns `length` bytes, or as many as there are.
fn part(bytes: &impl Bytes, at: u64, length: u64) -> Vec<u8> {
    let mut into = vec![0; length as usize];
    let read = bytes.read(at, &mut into);
    into.truncate(read);
    into
}

fn word(head: &[u8], at: usize) -> u64 {
    let eight = head.get(at..at + 8).and_then(|part| part.try_into().ok());
    u64::from_le_bytes(eight.unwrap_or_default())
}

fn half(head: &[u8], at: usize) -> u64 {
    let two = head.get(at..at + 2).and_then(|part| part.try_into().ok());
    u16::from_le_bytes(two.unwrap_or_default()).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Bytes for &[u8] {
        fn read(&self, at: u64, into: &mut [u8]) -> usize {
            let there = usize::try_from(at)
                .ok()
                .and_then(|at| self.get(at..))
                .unwrap_or_default();
            into.iter_mut().zip(there).for_each(|(to, from)| *to = *from);
            there.len().min(into.len())
        }
    }

    /// An ELF file with these sections: name, type, flags, size.
    fn elf_with(sections: &[(&str, u32, u64, u64)]) -> Vec<u8> {
        let sections: Vec<_> = sections
            .iter()
            .map(|(name, kind, flags, size)| (*name, *kind, *flags, *size, 0))
            .collect();
        elf_of(&sections, &[])
    }

    /// An ELF file with these sections (the last number is the alignment) and with segments of this type and size in
    /// memory.
    fn elf_of(sections: &[(&str, u32, u64, u64, u64)], segments: &[(u32, u64)]) -> Vec<u8> {
        let mut names = vec![0];
        let mut table = vec![0; 64];
        for (name, kind, flags, size, alignment) in sections {
            let mut header = [0; 64];
            header[48..56].copy_from_slice(&alignment.to_le_bytes());
            header[0..4].copy_from_slice(&(names.len() as u32).to_le_bytes());
            header[4..8].copy_from_slice(&kind.to_le_bytes());
            header[8..16].copy_from_slice(&flags.to_le_bytes());
            header[32..40].copy_from_slice(&size.to_le_bytes());
            table.extend(header);
            names.extend(name.bytes().chain([0]));
        }
        let mut last = [0; 64];
        last[24..32].copy_from_slice(&64_u64.to_le_bytes());
        last[32..40].copy_from_slice(&(names.len() as u64).to_le_bytes());
        table.extend(last);
        let mut file = ELF.to_vec();
        file.push(2);
        file.resize(64, 0);
        file[16..18].copy_from_slice(&2_u16.to_le_bytes());
        file[18..20].copy_from_slice(&190_u16.to_le_bytes());
        file[40..48].copy_from_slice(&(64 + names.len() as u64).to_le_bytes());
        file[32..40].copy_from_slice(&(64 + (names.len() + table.len()) as u64).to_le_bytes());
        file[54..56].copy_from_slice(&56_u16.to_le_bytes());
        file[56..58].copy_from_slice(&(segments.len() as u16).to_le_bytes());
        file[58..60].copy_from_slice(&64_u16.to_le_bytes());
        file[60..62].copy_from_slice(&(sections.len() as u16 + 2).to_le_bytes());
        file[62..64].copy_from_slice(&(sections.len() as u16 + 1).to_le_bytes());
        file.extend(names);
        file.extend(table);
        for (kind, size) in segments {
            let mut header = [0; 56];
            header[0..4].copy_from_slice(&kind.to_le_bytes());
            header[40..48].copy_from_slice(&size.to_le_bytes());
            file.extend(header);
        }
        file
    }

    #[test]
    fn static_variables_count_though_the_file_has_no_bytes_of_them() {
        const GIB: u64 = 1 << 30;
        let file = elf_with(&[
            (".text.kernel", 1, 6, 4096),
            (".nv.global", 8, 3, 59 * GIB),
            (".nv.shared.kernel", 8, 3, 1 << 16),
            (".debug_info", 1, 0, 1 << 20),
        ]);
        let code = of(&file.as_slice(), 0);
        assert_eq!((code.bytes, code.is_known), (59 * GIB + 4096, true));
        assert_eq!(of(&file.as_slice(), 0).fingerprint, code.fingerprint);
        let mut other = file.clone();
        other[66] ^= 1;
        assert_ne!(of(&other.as_slice(), 0).fingerprint, code.fingerprint);
        for (at, what) in [(16, "to be linked"), (18, "not for a GPU"), (4, "another class")] {
            let mut other = file.clone();
            other[at] ^= 3;
            assert!(!of(&other.as_slice(), 0).is_known, "{what}");
        }
        assert!(!of(&&file[..file.len() - 1], 0).is_known, "it ends early");
    }

    #[test]
    fn each_section_takes_whole_units_of_its_alignment() {
        let of_sections = |sections: &[_], segments: &[_]| {
            let code = of(&elf_of(sections, segments).as_slice(), 0);
            assert!(code.is_known);
            code.bytes
        };
        let small = |alignment| (".nv.global.a", 8, 3, 1, alignment);
        assert_eq!(of_sections(&[small(0)], &[]), 512);
        assert_eq!(
            of_sections(&[small(256), small(512), small(4096)], &[]),
            512 + 512 + 4096
        );
        assert_eq!(of_sections(&[small(1 << 30)], &[]), 1 << 30);
        assert_eq!(of_sections(&[(".text", 1, 6, 513, 128)], &[]), 1024);
        assert_eq!(of_sections(&[(".text", 1, 6, 0, 1 << 30)], &[]), 0);
    }

    #[test]
    fn segments_count_where_they_take_more_than_the_sections() {
        let sections = [(".text", 1, 6, 4096, 128)];
        for (segments, bytes) in [
            (&[(1, 4000), (6, 1 << 30)][..], 4096),
            (&[(1, 4000), (1, 97)], 4097),
            (&[(1, 59 << 30)], 59 << 30),
            (&[(1, u64::MAX), (1, 1)], u64::MAX),
        ] {
            let file = elf_of(&sections, segments);
            let code = of(&file.as_slice(), 0);
            assert_eq!((code.bytes, code.is_known), (bytes, true), "{segments:?}");
            assert!(!of(&&file[..file.len() - 1], 0).is_known, "it ends early");
            let mut other = file.clone();
            other[54] += 1;
            assert!(!of(&other.as_slice(), 0).is_known, "of another size");
        }
    }

    /// Memory is mapped in pages.
    const PAGE: u64 = 4096;

    /// Memory in which only the pages of `text` are mapped, and the end of what was read.
    struct Mapped<'a>(u64, &'a [u8], core::cell::Cell<u64>);

    impl Bytes for Mapped<'_> {
        fn read(&self, at: u64, into: &mut [u8]) -> usize {
            let Self(start, text, end) = self;
            let last = (start + text.len() as u64).next_multiple_of(PAGE);
            let stop = at + into.len() as u64;
            assert!(*start <= at && stop <= last, "{at} to {stop} of {start} to {last}");
            end.set(end.get().max(stop));
            text.iter()
                .copied()
                .chain(core::iter::repeat(0))
                .skip((at - start) as usize)
                .zip(into.iter_mut())
                .for_each(|(from, to)| *to = from);
            into.len()
        }

        fn text(&self, at: u64, into: &mut [u8]) -> usize {
            let mut bytes = into.chunks_mut(1).zip(at..);
            let end = bytes.position(|(to, at)| {
                self.read(at, to);
                to == [0]
            });
            end.unwrap_or(into.len())
        }
    }

    #[test]
    fn memory_is_read_no_further_than_the_driver_reads_it() {
        let ptx = b".version 8.0\n.global .b8 one[3];\n".repeat(1000);
        let known = of(&ptx.as_slice(), 0);
        assert_eq!(known.bytes, 3000);
        // The text may end at the last byte before an unmapped page.
        for start in [PAGE, PAGE + 1, 3 * PAGE - 9] {
            let text = [ptx.as_slice(), &[0]].concat();
            let memory = Mapped(start, &text, 0.into());
            let code = of(&memory, start);
            assert_eq!(
                (code.fingerprint, code.bytes),
                (known.fingerprint, known.bytes),
                "the same text anywhere"
            );
            assert_eq!(memory.2.get(), start + text.len() as u64, "up to its NUL");
        }
        for text in ["// none\0", "\0", "P\0"] {
            let short = Mapped(PAGE, text.as_bytes(), 0.into());
            assert_eq!(of(&short, PAGE).bytes, 0);
            assert_eq!(short.2.get(), PAGE + text.len() as u64, "{text:?}");
        }
        let other = Mapped(PAGE, &[0xde, 0xc0, 0x17, 0x0b, 1, 2, 3], 0.into());
        assert_eq!(of(&other, PAGE).fingerprint, 0, "of another kind");
        assert_eq!(other.2.get(), PAGE + 1, "its kind alone");
        let bitcode = Mapped(PAGE, b"BC\xc0\xde, which has no NUL", 0.into());
        assert_eq!(of(&bitcode, PAGE).fingerprint, 0, "it only begins as text");
        assert_eq!(bitcode.2.get(), PAGE + 3);
        let file = elf_with(&[(".text.kernel", 1, 6, 4096), (".debug_info", 1, 0, 1 << 20)]);
        let memory = Mapped(PAGE, &file, 0.into());
        of(&memory, PAGE);
        assert_eq!(memory.2.get(), PAGE + file.len() as u64, "its tables, which are last");
        let head = |kind: &[u8; 4], rest: &[u8]| [kind, rest].concat();
        for (start, read, what) in [
            (head(WRAPPER, &[1, 0, 0, 0]), 16, "a wrapper of nothing"),
            (head(ELF, &[1]), 16, "a file of another class"),
            (
                head(FAT_BINARY, &[2, 0, 16, 0, 255]),
                8,
                "a fat binary of another version",
            ),
            (
                head(FAT_BINARY, &[1, 0, 15, 0, 255]),
                8,
                "one with a header of another size",
            ),
            (head(FAT_BINARY, &[1, 0, 16, 0, 8]), 24, "its header and its code"),
        ] {
            let memory = Mapped(PAGE, &start, 0.into());
            of(&memory, PAGE);
            assert_eq!(memory.2.get(), PAGE + read, "{what}");
        }
    }

    #[test]
    fn the_variables_of_ptx_count_up_to_the_end_of_the_text() {
        let declared = b".global .b8 big[1024][3];";
        let text = [declared.as_slice(), b"\0.global .b8 behind[99999];"].concat();
        assert_eq!(of(&text.as_slice(), 0).bytes, 3072);
        assert_eq!(of(&b"".as_slice(), 0).bytes, 0);
        let long = [b" ".repeat(100 << 10).as_slice(), declared].concat();
        let code = of(&long.as_slice(), 0);
        assert_eq!(code.bytes, 3072);
        let other = [b" ".repeat(100 << 10).as_slice(), b".global .b8 big[1025][3];"].concat();
        assert_ne!(
            of(&other.as_slice(), 0).fingerprint,
            code.fingerprint,
            "no text that took less before"
        );
    }

    #[test]
    fn a_fat_binary_counts_as_nothing_and_is_known_again_also_behind_its_wrapper() {
        let mut file = WRAPPER.to_vec();
        file.extend([1, 0, 0, 0]);
        file.extend(24_u64.to_le_bytes());
        file.extend([0; 8]);
        file.extend(FAT_BINARY);
        file.extend([1, 0, 16, 0]);
        file.extend((10_u64 << 20).to_le_bytes());
        let code = of(&file.as_slice(), 0);
        assert_eq!((code.bytes, code.fingerprint == 0), (0, false));
        file.pop();
        file.push(1);
        assert_ne!(of(&file.as_slice(), 0).fingerprint, code.fingerprint, "another length");
    }

    #[test]
    fn whatever_is_there_is_read_without_a_panic() {
        let file = elf_with(&[(".text", 1, 6, u64::MAX), (".nv.global", 8, 3, u64::MAX)]);
        for end in 0..file.len() {
            of(&&file[..end], 0);
        }
        for byte in 0..file.len() {
            let mut broken = file.clone();
            broken[byte] = 0xff;
            of(&broken.as_slice(), 0);
        }
        of(&file.as_slice(), u64::MAX);
    }
}
