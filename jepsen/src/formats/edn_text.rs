//! Forms of EDN (Clojure's data notation), read from a stream within bounds.
//!
//! Absent: characters and symbols have no meaning here and become their text.

use super::{ReadError, edn_number};
use crate::value::Value;
use std::collections::BTreeSet;
use std::io::BufRead;

/// How deep forms may be nested.
const MAX_DEPTH: usize = 64;
/// How many bytes a string or a word may have.
const MAX_BYTES: usize = 16 << 20;
/// How many elements one collection may have.
const MAX_ELEMENTS: usize = 1 << 20;

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Form {
    /// Anything that is neither keyword nor map.
    Value(Value),
    /// `:name`, without its colon.
    Keyword(String),
    /// A vector or list.
    List(Vec<Form>),
    /// A set, in its written order.
    Set(Vec<Form>),
    /// Pairs in their written order, without duplicate keys.
    Map(Vec<(Form, Form)>),
}

impl Form {
    /// This form as a value of a history.
    pub(super) fn value(&self) -> Value {
        match self {
            Self::Value(value) => value.clone(),
            Self::Keyword(name) => Value::Other(format!(":{name}").into()),
            Self::List(forms) => Value::List(forms.iter().map(Self::value).collect()),
            Self::Set(forms) => Value::Set(forms.iter().map(Self::value).collect()),
            Self::Map(entries) => Value::Map(
                entries.iter().map(|(key, value)| (key.value(), value.value())).collect(),
            ),
        }
    }
}

/// Reads the first form of `text`.
pub(super) fn value(text: &str) -> Result<Value, String> {
    let mut text = Text::new(text.as_bytes());
    let read = text.peek_form().and_then(|next| match next {
        Some(_) => text.form(),
        None => Err(ReadError::at(1, "a value is missing")),
    });
    match read {
        Ok(form) => Ok(form.value()),
        Err(ReadError::Content { what, .. }) => Err(what),
        Err(other) => Err(other.to_string()),
    }
}

/// A stream of forms.
pub(super) struct Text<R> {
    input: R,
    line: u64,
    /// The `#` of a set or of a symbolic number was passed: its `{` or its other `#` is next.
    past_hash: bool,
}

impl<R: BufRead> Text<R> {
    pub(super) fn new(input: R) -> Self {
        Self { input, line: 1, past_hash: false }
    }

    /// The line being read, from 1.
    pub(super) fn line(&self) -> u64 {
        self.line
    }

    fn err<T>(&self, what: impl std::fmt::Display) -> Result<T, ReadError> {
        Err(ReadError::at(self.line, what))
    }

    fn peek(&mut self) -> Result<Option<u8>, ReadError> {
        loop {
            match self.input.fill_buf() {
                Ok(bytes) => return Ok(bytes.first().copied()),
                Err(err) if err.kind() == std::io::ErrorKind::Interrupted => {}
                Err(err) => return Err(err.into()),
            }
        }
    }

    /// Passes over the byte that was peeked at.
    pub(super) fn skip(&mut self) -> Result<(), ReadError> {
        if self.peek()? == Some(b'\n') {
            self.line += 1;
        }
        self.input.consume(1);
        Ok(())
    }

    fn take(&mut self, end: &str) -> Result<u8, ReadError> {
        match self.peek()? {
            Some(byte) => self.skip().map(|()| byte),
            None => self.err(end),
        }
    }

    /// The first byte of the next form, past blanks, comments, tags and discarded forms.
    pub(super) fn peek_form(&mut self) -> Result<Option<u8>, ReadError> {
        self.peek_form_at(0)
    }

    fn peek_form_at(&mut self, depth: usize) -> Result<Option<u8>, ReadError> {
        while !self.past_hash {
            match self.peek()? {
                Some(b' ' | b'\t' | b'\r' | b'\n' | b',' | 0x0c) => self.skip()?,
                Some(b';') => {
                    while !matches!(self.peek()?, None | Some(b'\n')) {
                        self.skip()?;
                    }
                }
                Some(b'#') => {
                    self.skip()?;
                    match self.peek()? {
                        Some(b'{' | b'#') => self.past_hash = true,
                        Some(b'_') => {
                            self.skip()?;
                            self.form_at(depth + 1)?;
                        }
                        _ => drop(self.word()?),
                    }
                }
                other => return Ok(other),
            }
        }
        Ok(Some(b'#'))
    }

    /// Reads the next form. `peek_form` has found its first byte.
    pub(super) fn form(&mut self) -> Result<Form, ReadError> {
        self.form_at(0)
    }

    fn form_at(&mut self, depth: usize) -> Result<Form, ReadError> {
        if depth > MAX_DEPTH {
            return self.err("nested too deeply");
        }
        match self.peek_form_at(depth)? {
            None => self.err("a form is missing at the end"),
            Some(b'[') => self.list(b']', depth).map(Form::List),
            Some(b'(') => self.list(b')', depth).map(Form::List),
            Some(b'#') if self.peek()? == Some(b'{') => self.list(b'}', depth).map(Form::Set),
            Some(b'#') => self.symbolic(),
            Some(b'{') => self.map(depth),
            Some(b'"') => self.string(),
            Some(stray @ (b']' | b')' | b'}')) => {
                self.err(format!("a stray {:?}", char::from(stray)))
            }
            Some(_) => self.word().map(|word| atom(&word)),
        }
    }

    fn map(&mut self, depth: usize) -> Result<Form, ReadError> {
        let flat = self.list(b'}', depth)?;
        if flat.len() % 2 != 0 {
            return self.err("a map with a key that has no value");
        }
        let mut flat = flat.into_iter();
        let pairs: Vec<(Form, Form)> =
            std::iter::from_fn(|| Some((flat.next()?, flat.next()?))).collect();
        let mut keys = BTreeSet::new();
        match pairs.iter().map(|(key, _)| key.value()).find(|key| !keys.insert(key.clone())) {
            Some(twice) => self.err(format!("a map with the key {twice} twice")),
            None => Ok(Form::Map(pairs)),
        }
    }

    /// The forms up to `close`.
    fn list(&mut self, close: u8, depth: usize) -> Result<Vec<Form>, ReadError> {
        self.past_hash = false;
        self.skip()?;
        let mut forms = Vec::new();
        loop {
            match self.peek_form_at(depth + 1)? {
                None => return self.err(format!("{:?} is missing at the end", char::from(close))),
                Some(found) if found == close => {
                    self.skip()?;
                    return Ok(forms);
                }
                Some(_) if forms.len() >= MAX_ELEMENTS => return self.err("too many elements"),
                Some(_) => forms.push(self.form_at(depth + 1)?),
            }
        }
    }

    /// A number that has no digits.
    fn symbolic(&mut self) -> Result<Form, ReadError> {
        self.past_hash = false;
        let word = self.word()?;
        match word.as_str() {
            "#Inf" | "#-Inf" | "#NaN" => Ok(Form::Value(Value::Other(format!("#{word}").into()))),
            _ => self.err(format!("no value is called #{word}")),
        }
    }

    fn string(&mut self) -> Result<Form, ReadError> {
        const END: &str = "a string has no end";
        self.skip()?;
        let mut bytes = Vec::new();
        loop {
            if bytes.len() > MAX_BYTES {
                return self.err("a string is too long");
            }
            match self.take(END)? {
                b'"' => break,
                b'\\' => match self.take(END)? {
                    b'n' => bytes.push(b'\n'),
                    b't' => bytes.push(b'\t'),
                    b'r' => bytes.push(b'\r'),
                    b'b' => bytes.push(8),
                    b'f' => bytes.push(12),
                    b'u' => {
                        let code = self.escaped()?;
                        bytes.extend_from_slice(code.encode_utf8(&mut [0; 4]).as_bytes());
                    }
                    plain @ (b'"' | b'\\') => bytes.push(plain),
                    other => {
                        return self.err(format!("unknown escape \\{}", char::from(other)));
                    }
                },
                byte => bytes.push(byte),
            }
        }
        match String::from_utf8(bytes) {
            Ok(text) => Ok(Form::Value(Value::Text(text.into()))),
            Err(_) => self.err("a string is not UTF-8"),
        }
    }

    /// The character after `\u`: four hexadecimal digits, or eight for a surrogate pair of UTF-16.
    fn escaped(&mut self) -> Result<char, ReadError> {
        let first = self.unit()?;
        let mut units = vec![first];
        if (0xd800..0xdc00).contains(&first) {
            for expected in *b"\\u" {
                if self.take("a string has no end")? != expected {
                    return self.err(format!("\\u{first:04x} is half a character"));
                }
            }
            units.push(self.unit()?);
        }
        match char::decode_utf16(units).next() {
            Some(Ok(code)) => Ok(code),
            _ => self.err(format!("\\u{first:04x} is half a character")),
        }
    }

    fn unit(&mut self) -> Result<u16, ReadError> {
        let mut hex = String::new();
        for _ in 0..4 {
            hex.push(char::from(self.take("a string has no end")?));
        }
        match u16::from_str_radix(&hex, 16) {
            Ok(unit) if !hex.starts_with('+') => Ok(unit),
            _ => self.err(format!("unknown escape \\u{hex}")),
        }
    }

    fn word(&mut self) -> Result<String, ReadError> {
        let mut bytes = Vec::new();
        if self.peek()? == Some(b'\\') {
            bytes.push(b'\\');
            self.skip()?;
            // The first byte of a character literal belongs to it, even if it would end a word.
            match self.peek()? {
                Some(byte) if !byte.is_ascii_whitespace() => bytes.push(byte),
                _ => return self.err("a character is missing behind a \\"),
            }
            self.skip()?;
        }
        while let Some(byte) = self.peek()? {
            let ends = byte.is_ascii_whitespace() || b",;\"()[]{}\\".contains(&byte);
            if ends {
                break;
            }
            if bytes.len() > MAX_BYTES {
                return self.err("a word is too long");
            }
            bytes.push(byte);
            self.skip()?;
        }
        if bytes.is_empty() {
            return self.err("a form is missing");
        }
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }
}

fn atom(word: &str) -> Form {
    if let Some(name) = word.strip_prefix(':') {
        return Form::Keyword(name.to_owned());
    }
    Form::Value(match word {
        "nil" => Value::Nil,
        "true" => Value::Bool(true),
        "false" => Value::Bool(false),
        _ => edn_number::value(word).unwrap_or_else(|| Value::Other(word.into())),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_are_read_past_comments_tags_and_what_is_discarded() {
        let shown = |text: &str| value(text).map(|v| v.to_string());
        assert_eq!(shown("[0 4]").unwrap(), "[0 4]");
        assert_eq!(shown(" ; why\n #op{:a -1, :b #{nil}} ").unwrap(), "{:a -1, :b #{nil}}");
        assert_eq!(shown("#_ [1 2] (true 3N \"a\\n\\u00e9\")").unwrap(), "[true 3 \"a\\né\"]");
        assert_eq!(shown("1.5").unwrap(), "1.5");
        assert_eq!(
            shown("[##Inf ##-Inf {##NaN #tag ##NaN}]").unwrap(),
            "[##Inf ##-Inf {##NaN ##NaN}]"
        );
        assert_eq!(
            shown(r#"[\( \[\] \" \; \# \é \newline]"#).unwrap(),
            r#"[\( \[ \] \" \; \# \é \newline]"#
        );
        assert_eq!(shown(r#""\ud83d\ude00 \u00e9""#).unwrap(), "\"😀 é\"");
    }

    #[test]
    fn sets_and_maps_are_equal_in_any_order_and_a_set_is_no_vector() {
        let read = |text: &str| value(text).unwrap();
        for (one, other) in [
            ("#{1 2}", "#{2 1}"),
            ("#{1 2}", "#{2 1 2}"),
            ("{:a 1, :b 2}", "{:b 2, :a 1}"),
            ("[{:a #{1 {:b 2 :c 3}}}]", "[{:a #{{:c 3 :b 2} 1}}]"),
            ("(1 2)", "[1 2]"),
        ] {
            assert_eq!(read(one), read(other), "{one} and {other}");
            assert_eq!(read(one).to_string(), read(other).to_string(), "{one} and {other}");
        }
        for (one, other) in [
            ("#{1 2}", "[1 2]"),
            ("[1 2]", "[2 1]"),
            ("#{}", "[]"),
            ("#{:a 1}", "{:a 1}"),
            ("{:a 1}", "{:a 2}"),
            ("{:a 1}", "\"{:a 1}\""),
        ] {
            assert_ne!(read(one), read(other), "{one} and {other}");
            assert_ne!(read(one).to_string(), read(other).to_string(), "{one} and {other}");
        }
        assert_eq!(read("{}").to_string(), "{}");
    }

    #[test]
    fn text_that_is_no_form_is_an_error() {
        for (text, why) in [
            ("", "missing"),
            ("[0 4", "missing at the end"),
            ("{:a}", "has no value"),
            ("{:a 1, :b 2, :a 3}", "the key :a twice"),
            ("\"a", "no end"),
            ("##", "no value is called ##"),
            ("[##inf]", "no value is called ##inf"),
            ("\\", "a character is missing"),
            ("[\\ 1]", "a character is missing"),
            ("]", "stray"),
            ("\"\\q\"", "escape"),
            (r#""\u+0e9""#, "escape"),
            (r#""\ud83d""#, "half a character"),
            (r#""\ud83d\u0041""#, "half a character"),
            (r#""\ude00\ud83d""#, "half a character"),
            (&"[".repeat(100), "too deeply"),
        ] {
            let err = value(text).unwrap_err();
            assert!(err.contains(why), "{text}: {err}");
        }
    }
}
