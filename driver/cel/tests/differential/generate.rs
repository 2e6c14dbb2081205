//! Generates random expressions that cover the whole library. They keep their structure so that they can be reduced.

use std::fmt;

/// A small random number generator. Its seed reproduces a failure.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed ^ 0x9e37_79b9_7f4a_7c15)
    }

    pub(crate) fn below(&mut self, limit: usize) -> usize {
        // splitmix64
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % limit as u64) as usize
    }

    fn one_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }
}

enum Piece {
    Text(&'static str),
    Part(&'static str),
    Variable(&'static str),
    /// A variable, followed by its value.
    Bound,
}

pub(crate) struct Template {
    of: &'static str,
    pieces: Vec<Piece>,
}

impl Template {
    fn is_leaf(&self) -> bool {
        self.pieces.iter().all(|piece| matches!(piece, Piece::Text(_)))
    }
}

#[derive(Clone)]
pub(crate) struct Expression {
    of: &'static str,
    pieces: Vec<Written>,
}

#[derive(Clone)]
enum Written {
    Text(String),
    Part(Expression),
}

impl fmt::Display for Expression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for piece in &self.pieces {
            match piece {
                Written::Text(text) => f.write_str(text)?,
                Written::Part(part) if part.is_simple() => write!(f, "{part}")?,
                Written::Part(part) => write!(f, "({part})")?,
            }
        }
        Ok(())
    }
}

impl Expression {
    fn is_simple(&self) -> bool {
        let text = match self.pieces.as_slice() {
            [Written::Text(text)] => text,
            _ => return false,
        };
        !text.starts_with('-')
    }

    /// All ways to make the expression one step smaller: a part instead of the whole, or a leaf instead of a part.
    pub(crate) fn smaller(&self, templates: &Templates) -> Vec<Self> {
        let mut all = Vec::new();
        if self.pieces.len() > 1 {
            self.parts_of(self.of, &mut all);
            all.extend(templates.leaves(self.of));
        }
        for (index, piece) in self.pieces.iter().enumerate() {
            let Written::Part(part) = piece else { continue };
            for smaller in part.smaller(templates) {
                let mut whole = self.clone();
                whole.pieces[index] = Written::Part(smaller);
                all.push(whole);
            }
        }
        all
    }

    fn parts_of(&self, of: &str, all: &mut Vec<Self>) {
        for piece in &self.pieces {
            if let Written::Part(part) = piece {
                if part.of == of {
                    all.push(part.clone());
                }
                part.parts_of(of, all);
            }
        }
    }
}

pub(crate) struct Templates {
    all: Vec<Template>,
    types: Vec<&'static str>,
}

impl Templates {
    pub(crate) fn read() -> Self {
        let lines = include_str!("templates.txt").lines();
        let all: Vec<_> = lines
            .filter(|line| !line.is_empty() && !line.starts_with('#'))
            .map(template)
            .collect();
        let mut types: Vec<_> = all.iter().map(|template| template.of).collect();
        types.sort_unstable();
        types.dedup();
        for of in &types {
            assert!(
                all.iter().any(|template| template.of == *of && template.is_leaf()),
                "{of} has no form without parts"
            );
        }
        Self { all, types }
    }

    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    fn leaves(&self, of: &str) -> impl Iterator<Item = Expression> {
        self.all
            .iter()
            .filter(move |template| template.of == of && template.is_leaf())
            .take(3)
            .map(|template| Expression {
                of: template.of,
                pieces: vec![Written::Text(
                    template
                        .pieces
                        .iter()
                        .map(|piece| if let Piece::Text(text) = piece { text } else { "" })
                        .collect(),
                )],
            })
    }

    /// A bool expression around an expression of a given form.
    pub(crate) fn around(&self, index: usize, random: &mut Random) -> Expression {
        let template = &self.all[index % self.all.len()];
        let depth = 1 + random.below(4);
        let inner = self.write(template, depth, &mut Vec::new(), random);
        if inner.of == "Bool" {
            return inner;
        }
        let other = self.expression(inner.of, random.below(2), &mut Vec::new(), random);
        Expression {
            of: "Bool",
            pieces: vec![Written::Part(inner), Written::Text(" == ".into()), Written::Part(other)],
        }
    }

    fn expression(
        &self,
        of: &'static str,
        depth: usize,
        scope: &mut Vec<(String, &'static str)>,
        random: &mut Random,
    ) -> Expression {
        // Sometimes a part of a wrong type, which both sides must refuse.
        let of = if random.one_in(60) {
            self.types[random.below(self.types.len())]
        } else {
            of
        };
        let variables: Vec<_> = scope
            .iter()
            .filter(|(_, t)| *t == of)
            .map(|(name, _)| name.clone())
            .collect();
        if !variables.is_empty() && random.one_in(2) {
            return Expression {
                of,
                pieces: vec![Written::Text(variables[random.below(variables.len())].clone())],
            };
        }
        let fitting: Vec<_> = self
            .all
            .iter()
            .filter(|template| template.of == of && (depth > 0 || template.is_leaf()))
            .collect();
        self.write(
            fitting[random.below(fitting.len())],
            depth.saturating_sub(1),
            scope,
            random,
        )
    }

    fn write(
        &self,
        template: &Template,
        depth: usize,
        scope: &mut Vec<(String, &'static str)>,
        random: &mut Random,
    ) -> Expression {
        let outer = scope.len();
        let mut bound = None;
        let mut pieces = Vec::new();
        for piece in &template.pieces {
            match piece {
                Piece::Text(text) => pieces.push(Written::Text((*text).to_owned())),
                Piece::Variable(of) => {
                    let name = format!("v{}", scope.len());
                    pieces.push(Written::Text(name.clone()));
                    scope.push((name, of));
                }
                Piece::Bound => {
                    let name = format!("v{}", scope.len());
                    pieces.push(Written::Text(format!("{name}, ")));
                    bound = Some(name);
                }
                Piece::Part(of) => {
                    pieces.push(Written::Part(self.expression(of, depth, scope, random)));
                    if let Some(name) = bound.take() {
                        scope.push((name, of));
                    }
                }
            }
        }
        scope.truncate(outer);
        Expression {
            of: template.of,
            pieces,
        }
    }
}

fn template(line: &'static str) -> Template {
    let (of, mut rest) = line.split_once(' ').expect("a line is a type and a form");
    let mut pieces = Vec::new();
    let word = |text: &'static str| text.find(|c: char| !c.is_alphanumeric()).unwrap_or(text.len());
    while !rest.is_empty() {
        let part = rest
            .strip_prefix('<')
            .filter(|after| after.starts_with(char::is_uppercase));
        if let Some(after) = part {
            let (of, after) = after.split_at(word(after));
            pieces.push(Piece::Part(of));
            rest = after.strip_prefix('>').expect("a part ends with >");
        } else if let Some(after) = rest.strip_prefix("$=") {
            pieces.push(Piece::Bound);
            rest = after;
        } else if let Some(after) = rest
            .strip_prefix('$')
            .filter(|after| after.starts_with(char::is_uppercase))
        {
            let (of, after) = after.split_at(word(after));
            pieces.push(Piece::Variable(of));
            rest = after;
        } else {
            // Up to the next character with which a placeholder may begin.
            let next = rest.char_indices().skip(1).find(|(_, c)| matches!(c, '<' | '$'));
            let (text, after) = rest.split_at(next.map_or(rest.len(), |(at, _)| at));
            pieces.push(Piece::Text(text));
            rest = after;
        }
    }
    Template { of, pieces }
}
