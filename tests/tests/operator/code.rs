//! Rust source as tokens, without comments, literals and items that only tests compile.
//!
//! *Invariant:* tokens keep the lines of the file.
//! Absent: a parser. Paths, modules and braces suffice to see which module uses which.

use std::ops::Range;

/// A word, `::`, or one other mark.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Token {
    pub(super) text: String,
    pub(super) line: usize,
}

impl Token {
    pub(super) fn is(&self, text: &str) -> bool {
        self.text == text
    }

    pub(super) fn is_word(&self) -> bool {
        self.text.bytes().next().is_some_and(is_word)
    }
}

/// The tokens of a source file.
pub(super) fn tokens(source: &str) -> Vec<Token> {
    let mut code = source.as_bytes().to_vec();
    blank_literals(&mut code);
    blank_tests(&mut code);
    split(&code)
}

fn is_word(byte: u8) -> bool {
    byte == b'_' || byte.is_ascii_alphanumeric()
}

fn split(code: &[u8]) -> Vec<Token> {
    let (mut tokens, mut line, mut at) = (Vec::new(), 1, 0);
    while at < code.len() {
        let rest = &code[at..];
        let length = match rest[0] {
            byte if is_word(byte) => rest.iter().take_while(|byte| is_word(**byte)).count(),
            b':' if rest.starts_with(b"::") => 2,
            _ => 1,
        };
        if rest[0] == b'\n' {
            line += 1;
        }
        if !rest[0].is_ascii_whitespace() {
            let text = String::from_utf8_lossy(&rest[..length]).into_owned();
            tokens.push(Token { text, line });
        }
        at += length;
    }
    tokens
}

fn blank(code: &mut [u8], range: Range<usize>) {
    for byte in &mut code[range] {
        if *byte != b'\n' {
            *byte = b' ';
        }
    }
}

fn blank_literals(code: &mut [u8]) {
    let mut at = 0;
    while at < code.len() {
        match end_of_literal(code, at) {
            Some(end) => {
                blank(code, at..end);
                at = end;
            }
            None => at += 1,
        }
    }
}

/// The end of the comment or literal that begins here.
fn end_of_literal(code: &[u8], at: usize) -> Option<usize> {
    let rest = &code[at..];
    let length = match rest[0] {
        b'/' if rest.starts_with(b"//") => rest.iter().take_while(|byte| **byte != b'\n').count(),
        b'/' if rest.starts_with(b"/*") => block(rest),
        b'r' => raw_text(code, at)?,
        b'"' => text(rest),
        b'\'' => character(rest)?,
        _ => return None,
    };
    Some(at + length)
}

fn block(rest: &[u8]) -> usize {
    let (mut at, mut depth) = (0, 0);
    while at < rest.len() {
        if rest[at..].starts_with(b"/*") {
            (at, depth) = (at + 2, depth + 1);
        } else if rest[at..].starts_with(b"*/") {
            (at, depth) = (at + 2, depth - 1);
            if depth == 0 {
                return at;
            }
        } else {
            at += 1;
        }
    }
    rest.len()
}

fn text(rest: &[u8]) -> usize {
    let mut at = 1;
    while at < rest.len() && rest[at] != b'"' {
        at += if rest[at] == b'\\' { 2 } else { 1 };
    }
    (at + 1).min(rest.len())
}

/// `r"…"`, `br"…"` and `r#"…"#`, but neither a word that ends in `r` nor `r#match`.
fn raw_text(code: &[u8], at: usize) -> Option<usize> {
    let word_before = |back: usize| at.checked_sub(back).map(|at| code[at]).filter(|b| is_word(*b));
    let begins = match word_before(1) {
        None => true,
        Some(byte) => byte == b'b' && word_before(2).is_none(),
    };
    let rest = &code[at + 1..];
    let hashes = rest.iter().take_while(|byte| **byte == b'#').count();
    if !begins || rest.get(hashes) != Some(&b'"') {
        return None;
    }
    let text = &rest[hashes + 1..];
    let end = [b"\"".to_vec(), vec![b'#'; hashes]].concat();
    let found = text.windows(end.len()).position(|window| window == end.as_slice());
    let length = found.map_or(text.len(), |found| found + end.len());
    Some(1 + hashes + 1 + length)
}

/// `None` for a lifetime.
fn character(rest: &[u8]) -> Option<usize> {
    let first = *rest.get(1)?;
    if first == b'\\' {
        let after = rest.iter().skip(3).position(|byte| *byte == b'\'')?;
        return Some(3 + after + 1);
    }
    let bytes = match first {
        ..0xC0 => 1,
        0xC0..0xE0 => 2,
        0xE0..0xF0 => 3,
        0xF0.. => 4,
    };
    (rest.get(1 + bytes) == Some(&b'\'')).then_some(bytes + 2)
}

const TESTS_ONLY: &[u8] = b"#[cfg(test)]";

fn blank_tests(code: &mut [u8]) {
    let mut from = 0;
    loop {
        let mut windows = code[from..].windows(TESTS_ONLY.len());
        let Some(found) = windows.position(|window| window == TESTS_ONLY) else { return };
        let start = from + found;
        let end = end_of_item(code, start + TESTS_ONLY.len());
        blank(code, start..end);
        from = end;
    }
}

/// The end of the item, field or variant that begins here, after its attributes.
fn end_of_item(code: &[u8], mut at: usize) -> usize {
    loop {
        at += code[at..].iter().take_while(|byte| byte.is_ascii_whitespace()).count();
        match code[at..].starts_with(b"#[") {
            true => at = closing(code, at + 1),
            false => break,
        }
    }
    let (mut inside, mut generics) = (0, 0usize);
    while at < code.len() {
        match code[at] {
            b'(' | b'[' => inside += 1,
            b')' | b']' | b'}' if inside == 0 => return at,
            b')' | b']' => inside -= 1,
            b'{' if inside == 0 => return closing(code, at),
            b';' if inside == 0 => return at + 1,
            b',' if inside == 0 && generics == 0 => return at + 1,
            b'<' => generics += 1,
            // Not the end of an arrow.
            b'>' if !matches!(code[at - 1], b'-' | b'=') => generics = generics.saturating_sub(1),
            _ => {}
        }
        at += 1;
    }
    code.len()
}

/// The position after the bracket that closes the one here.
fn closing(code: &[u8], from: usize) -> usize {
    let mut depth = 0;
    for (at, byte) in code.iter().enumerate().skip(from) {
        match byte {
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return at + 1;
        }
    }
    code.len()
}
