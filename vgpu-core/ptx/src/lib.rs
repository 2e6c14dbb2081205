//! Computes the memory that the static variables of PTX take: `.global` and `.const` variables, of a module and inside
//! functions. The text arrives byte by byte, and is read as ptxas 13.5 reads it (the figures in the tests are from its
//! cubins):
//!
//! | text | how it is read |
//! |---|---|
//! | blanks | space, tab, line feed, carriage return |
//! | comments | `//` to the line feed, `/*` to the first `*/` |
//! | strings | from quote to quote, across lines; a backslash is a backslash |
//! | dimensions | decimal, `0x`, `0b`, or octal after a 0; perhaps `U` behind it; `WARP_SZ`. Expressions are errors |
//! | `[]` | as many as the initial value has elements |
//! | `name<n>` | n variables; the driver allocates only those that are used |
//! | `.ptr .global` | an attribute of a parameter, no variable |
//! | `ld.global` | an instruction. Behind the list of `.target`, though, a variable may follow without a blank |
//!
//! How it fails: text that ptxas refuses may give any result. Lengths that ptxas cuts to 32 bits are taken in full, as
//! are variables that it drops. `ld .global`, with a blank, is taken for a variable of one element. Each variable is
//! rounded up to its alignment, though ptxas packs them.

/// Adds up the bytes of the variables in the text read so far.
#[derive(Debug, Default)]
pub struct Variables {
    sum: u64,
    /// The construct to which the next byte belongs.
    within: Within,
    /// The word, directive or number that is being read, up to [`LONGEST_WORD`] bytes.
    word: Vec<u8>,
    before: Before,
    declaration: Option<Declaration>,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Within {
    #[default]
    Nothing,
    Slash,
    Line,
    Comment,
    /// Inside a comment, after a `*`.
    Star,
    Text,
}

/// The relevant parts of the token before a `.global`.
#[derive(Debug, Default)]
struct Before {
    /// A word that ended just before the next byte.
    touches: bool,
    /// The last directive.
    directive: Directive,
    /// Nothing came after the directive.
    is_last: bool,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Directive {
    #[default]
    Other,
    /// `.ptr`
    Pointer,
    /// `.target`
    Target,
}

/// A declaration: `.global .align 4 .b8 name[16][4], other = 1;`
#[derive(Debug)]
struct Declaration {
    /// Bytes of an element, which may be a vector.
    element: u64,
    alignment: u64,
    part: Part,
    /// Open braces and parentheses.
    depth: u32,
    /// The number of elements so far.
    count: u64,
    /// Nothing of the current dimension was read yet.
    is_empty: bool,
    /// One dimension is open (`[]`): the initial value determines it.
    is_open: bool,
    /// Commas in the outermost list of the initial value.
    commas: u64,
    is_named: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    /// State space, alignment, attributes and type.
    Type,
    /// The value of an alignment.
    Alignment,
    /// Name and dimensions.
    Name,
    /// Inside `[]` or `<>`.
    Dimension,
    Value,
}

/// No relevant word is longer.
const LONGEST_WORD: usize = 64;

impl Variables {
    /// Reads the next byte.
    pub fn add(&mut self, byte: u8) {
        match (self.within, byte) {
            (Within::Line, b'\n') | (Within::Text, b'"') => self.within = Within::Nothing,
            (Within::Line | Within::Text, _) => {}
            (Within::Comment | Within::Star, b'*') => self.within = Within::Star,
            (Within::Star, b'/') => self.within = Within::Nothing,
            (Within::Comment | Within::Star, _) => self.within = Within::Comment,
            (Within::Slash, b'/') => self.within = Within::Line,
            (Within::Slash, b'*') => self.within = Within::Comment,
            (Within::Slash, _) => {
                self.within = Within::Nothing;
                self.add(byte);
            }
            (Within::Nothing, b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z' | b'_' | b'$' | b'%') => {
                if self.word.len() < LONGEST_WORD {
                    self.word.push(byte);
                }
            }
            (Within::Nothing, _) => {
                self.end_word();
                match byte {
                    b'.' => self.word.push(byte),
                    b'/' => self.within = Within::Slash,
                    b'"' => self.within = Within::Text,
                    b' ' | b'\t' | b'\r' | b'\n' => {}
                    _ => self.sign(byte),
                }
                self.before.touches &= byte == b'.';
            }
        }
    }

    /// Ends the text. Returns the bytes that its variables take.
    #[must_use]
    pub fn end(mut self) -> u64 {
        self.end_word();
        self.end_declaration();
        self.sum
    }

    fn end_word(&mut self) {
        if self.word.is_empty() {
            return;
        }
        let word = core::mem::take(&mut self.word);
        match word.strip_prefix(b".") {
            Some(name) => self.directive(name),
            None => self.named(&word),
        }
        self.before.touches = !word.starts_with(b".");
        self.word = word;
        self.word.clear();
    }

    fn directive(&mut self, name: &[u8]) {
        let is_variable = matches!(name, b"global" | b"const");
        let of_parameter = self.before.directive == Directive::Pointer && self.before.is_last;
        let of_instruction = self.before.touches && self.before.directive != Directive::Target;
        if is_variable && !of_parameter && !of_instruction {
            self.end_declaration();
            self.declaration = Some(Declaration::default());
        } else if let Some(declaration) = &mut self.declaration {
            declaration.directive(name);
        }
        // A directive that is part of an instruction (`ld.global`) is not noted.
        if !self.before.touches {
            self.before.directive = match name {
                b"ptr" => Directive::Pointer,
                b"target" => Directive::Target,
                _ => Directive::Other,
            };
        } else if name == b"ptr" {
            self.before.directive = Directive::Pointer;
        }
        self.before.is_last = true;
    }

    fn named(&mut self, word: &[u8]) {
        self.before.is_last = false;
        if let Some(declaration) = &mut self.declaration {
            declaration.word(word);
        }
    }

    fn sign(&mut self, sign: u8) {
        self.before.is_last = false;
        let Some(declaration) = &mut self.declaration else {
            return;
        };
        match declaration.sign(sign) {
            Next::Same => {}
            Next::Variable => self.sum = self.sum.saturating_add(declaration.take()),
            Next::End => self.end_declaration(),
        }
    }

    fn end_declaration(&mut self) {
        if let Some(mut declaration) = self.declaration.take() {
            self.sum = self.sum.saturating_add(declaration.take());
        }
    }
}

/// What follows a character in a declaration.
enum Next {
    Same,
    /// Another variable of this type.
    Variable,
    End,
}

impl Default for Declaration {
    fn default() -> Self {
        Self {
            element: 1,
            alignment: 1,
            part: Part::Type,
            depth: 0,
            count: 1,
            is_empty: false,
            is_open: false,
            commas: 0,
            is_named: false,
        }
    }
}

impl Declaration {
    fn directive(&mut self, name: &[u8]) {
        if self.part != Part::Type || self.depth > 0 {
            return;
        }
        if name == b"align" {
            self.part = Part::Alignment;
        } else {
            self.element = self.element.saturating_mul(size_of_kind(name));
        }
    }

    fn word(&mut self, word: &[u8]) {
        match self.part {
            Part::Alignment => {
                self.alignment = number(word).unwrap_or(1);
                self.part = Part::Type;
            }
            Part::Dimension => {
                self.is_empty = false;
                self.count = self.count.saturating_mul(number(word).unwrap_or(1));
            }
            // A word at a greater depth belongs to an attribute.
            Part::Type if self.depth == 0 => {
                self.is_named = true;
                self.part = Part::Name;
            }
            Part::Type | Part::Name | Part::Value => {}
        }
    }

    fn sign(&mut self, sign: u8) -> Next {
        match (self.part, sign) {
            (_, b';') => return Next::End,
            (_, b'{' | b'(') => {
                // This is the body of a function: the declaration before it did not declare a variable.
                if sign == b'{' && self.part != Part::Value {
                    return Next::End;
                }
                self.depth += 1;
            }
            (_, b'}' | b')') => match self.depth.checked_sub(1) {
                Some(less) => self.depth = less,
                None => return Next::End,
            },
            (Part::Name, b'[' | b'<') => {
                self.part = Part::Dimension;
                self.is_empty = true;
            }
            (Part::Dimension, b']' | b'>') => {
                self.part = Part::Name;
                self.is_open |= self.is_empty;
            }
            (Part::Name, b'=') => self.part = Part::Value,
            (Part::Value, b',') if self.depth == 1 => self.commas += 1,
            (Part::Name | Part::Value, b',') if self.depth == 0 => return Next::Variable,
            _ => {}
        }
        Next::Same
    }

    /// Returns the bytes of the declared variable, and begins another one of the same type.
    fn take(&mut self) -> u64 {
        let elements = if self.is_open && self.part == Part::Value {
            self.commas + 1
        } else {
            1
        };
        let bytes = self.element.saturating_mul(self.count).saturating_mul(elements);
        let bytes = if self.is_named { bytes } else { 0 };
        (self.part, self.count, self.is_open, self.commas, self.is_named) = (Part::Type, 1, false, 0, false);
        bytes
            .checked_next_multiple_of(self.alignment.max(1))
            .unwrap_or(u64::MAX)
    }
}

/// Returns the value of an integer in a form that a dimension may have.
fn number(word: &[u8]) -> Option<u64> {
    let word = core::str::from_utf8(word).ok()?;
    if word == "WARP_SZ" {
        return Some(32);
    }
    let digits = word.strip_suffix('U').unwrap_or(word);
    let (digits, base) = match digits.as_bytes() {
        [b'0', b'x' | b'X', ..] => (&digits[2..], 16),
        [b'0', b'b' | b'B', ..] => (&digits[2..], 2),
        [b'0', _, ..] => (&digits[1..], 8),
        _ => (digits, 10),
    };
    let is_number = !digits.is_empty() && digits.chars().all(|digit| digit.is_digit(base));
    is_number.then(|| u64::from_str_radix(digits, base).unwrap_or(u64::MAX))
}

/// Returns the bytes of a type such as `b32` or `f16x2`, or the number of elements of a vector such as `v4`; 1 for
/// anything else.
fn size_of_kind(kind: &[u8]) -> u64 {
    let kind = core::str::from_utf8(kind).unwrap_or_default();
    let digits = kind.trim_start_matches(|letter: char| letter.is_ascii_alphabetic());
    let (bits, lanes) = digits.split_once('x').unwrap_or((digits, "1"));
    match (bits.parse::<u64>(), lanes.parse::<u64>()) {
        (Ok(elements), _) if kind.starts_with('v') => elements,
        (Ok(bits), Ok(lanes)) => bits.saturating_mul(lanes).div_ceil(8),
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> u64 {
        let mut variables = Variables::default();
        text.bytes().for_each(|byte| variables.add(byte));
        variables.end()
    }

    /// The figures are those of ptxas 13.5 in `.nv.global`, `.nv.global.init` and `.nv.constant3`.
    #[test]
    fn as_ptxas_reads_it() {
        for (bytes, text) in [
            (4_000_000, ".visible .global .align 4 .b8 big[4000000];"),
            (40_000, ".global .b8 big[400][100];"),
            (61_035, ".global .b8 big[0xEE6B];"),
            (61_035, ".global .b8 big[0XEE6BU];"),
            (4000, ".global .b8 big[4000U];"),
            (63, ".global .b8 big[077];"),
            (5, ".global .b8 big[0b101];"),
            (4000, ".global/**/ .b8 big[4000];"),
            (4000, ".global .b8 big[/*x*/4000];"),
            (4000, ".global .b8 big[ 4000 ];"),
            (4001, ".global .b8 small, big[4000];"),
            (4004, ".global .b8 small,big[4000],c[3];"),
            (4000, ".global .v4 .b32 big[250];"),
            (4000, ".global.v4.b32 big[250];"),
            (4000, ".global .attribute(.managed) .b8 big[4000];"),
            (4000, ".weak .global .b8 big[4000];"),
            (4000, ".common .global .b8 big[4000];"),
            (4, ".global .b8 big[] = {1,2,3,4};"),
            (16, ".global .b32 big[] = {1,2,3,4};"),
            (16, ".global .b32 big[][2] = {{1,2},{3,4}};"),
            (24, ".global .b32 big[3][2] = {{1,2},{3,4}};"),
            (12, ".global .u8 x[][4] = {{1},{2},{3}};"),
            (32, ".global .v4 .f32 x[] = {{1.0,2.0,3.0,4.0},{1.0,2.0,3.0,4.0}};"),
            (12, ".global .b8 a[4] = {1,2,3,4}, b[8] = {1};"),
            (5, ".global .b8 a = 1, b[3] = {1}, c;"),
            (16, ".global .u32 tab[] = { 1, 2, (3+4)*2, 5 };"),
            (28, ".global .u32 y; .global .u64 x[] = {generic(y)+4, y, 1};"),
            (8, ".global .f64 d = 0d3FF0000000000000;"),
            (16, ".global .f16x2 d[4];"),
            (64, ".global .b128 d[4];"),
            (32, ".global .b8 big[WARP_SZ];"),
            (100, ".const .b8 c[100];"),
            (5000, ".visible .entry k2() { .global .b8 inside[5000]; ret; }"),
            (0, ".visible .entry k2() { .shared .b8 inside[5000]; ret; }"),
            (0, ".visible .entry k2() { .local .b8 inside[5000]; ret; }"),
            (
                12,
                ".entry k2() { .global .u8 x[4]; .global .u8 y[4]; { .global .u8 x[4]; } ret; }",
            ),
            (4000, ".global .b8 big[4000] // c\n;"),
            (4000, ".global .b8 big // ;\n[4000];"),
            (4, ".global .b8 %big[4];"),
            (5, ".entry k2(.param .u64 p) { L: .global .b8 z[5]; ret; }"),
            (9, ".entry q() { lab:.global .u8 w[9]; ret; }"),
            (0, ".entry k2(.param .u64 .ptr .global .align 16 p) { ret; }"),
            (0, ".entry k2(.param .u64 .ptr.global.align 16 p) { ret; }"),
            (
                0,
                ".entry k(.param .u64 p) { ld.global.u32 r, [a]; st.global.u32 [a], r; ret; }",
            ),
            (
                1,
                ".global .u8 x; .entry z() { .loc 1 5 3 ld.global.u8 r, [x]; ld.global .u8 r, [x]; }",
            ),
            (5, ".pragma \"nounroll\"; .global .b8 z[5];"),
            (0, ".entry k2() { .pragma \".global .b8 z[5];\"; ret; }"),
            (5, ".file 1 \".global .b8 q[7];\"\n.global .b8 z[5];"),
            (9, ".file 1 \"a\\\".global .u8 w[9];"),
            (4, ".file 1 \"/*\"\n.global .u8 x[4];\n.file 2 \"*/\"\n"),
            (5, "/* /* */ .global .b8 z[5];"),
            (4, "/* **/ .global .u8 x[4];"),
            (0, "/*/ .global .u8 x[4]; */"),
            (4, "/* \" */ .global .u8 x[4]; /* \" */"),
            (5, "// \"\n.global .b8 z[5];"),
            (4, "// a\\\n.global .u8 x[4];\n"),
            (0, "// a\r.global .u8 x[4];\n"),
            (0, ".pragma \"a\n.global .u8 x[4];\n\";"),
            (3, ".align 4 .global .b8 x[3];"),
            (480, ".global .u32 x[2][3][4][5];"),
            (24, ".global .u32 x [2] [3];"),
            (1024, ".global .u8 x[WARP_SZ][WARP_SZ];"),
            (80, ".global .v4 .f32 x[2], y[3];"),
            (4, ".global\t.u8\tx[4];"),
            (4, ".global .u8 x[4]\r;"),
            (4, ".version 8.0 .target sm_90 .address_size 64 .global .u8 x[4];"),
            (4, ".version 8.0 .target sm_90,texmode_independent.global .u8 x[4];"),
            (4, "#line 5 \"a\"\n.global .u8 x[4];\n"),
            (4, ".section .debug_str { .b8 104 } .global .u8 x[4];"),
            (4, ".visible.global.u32 a;"),
        ] {
            assert_eq!(of(text), bytes, "{text}");
        }
    }

    #[test]
    fn more_than_ptxas_takes_where_it_cuts_drops_or_packs() {
        for (bytes, text) in [
            (10_000_000_000, ".global .u8 x[100000][100000];"),
            (4_294_967_296, ".global .u8 x[4294967296];"),
            (u64::MAX, ".global .u8 x[99999999999999999999]; .global .u64 y;"),
            (3, ".global .u8 w<3>;"),
            (2048, ".global .align 1024 .b8 x[3], y[3];"),
        ] {
            assert_eq!(of(text), bytes, "{text}");
        }
    }

    #[test]
    fn any_text_is_read_without_a_panic() {
        let signs = b".global .b8 x[4] = {1,(2)}, y<3>;\"/*\n";
        let mut state = 1_u64;
        for _ in 0..20_000 {
            let mut variables = Variables::default();
            for _ in 0..64 {
                state = state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1_442_695_040_888_963_407);
                variables.add(signs[(state >> 33) as usize % signs.len()]);
            }
            let _ = variables.end();
        }
    }
}
