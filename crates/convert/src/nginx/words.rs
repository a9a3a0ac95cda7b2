//! Directives of nginx with their blocks.

use crate::error::ConvertError;

/// Deepest block.
const MAX_DEPTH: usize = 16;

/// A directive.
#[derive(Clone, Debug)]
pub(crate) struct Directive {
    pub(crate) line: usize,
    pub(crate) name: String,
    pub(crate) words: Vec<String>,
    pub(crate) block: Option<Vec<Directive>>,
}

impl Directive {
    /// The word at a place behind the name, or an empty one.
    pub(crate) fn word_at(&self, place: usize) -> &str {
        self.words.get(place).map_or("", String::as_str)
    }

    /// The directives in its block.
    pub(crate) fn inner_directives(&self) -> &[Directive] {
        self.block.as_deref().unwrap_or_default()
    }
}

enum Token {
    Word(String),
    Begin,
    End,
    Stop,
}

/// The directives of a file.
pub(crate) fn directives(text: &str) -> Result<Vec<Directive>, ConvertError> {
    // Blocks that are open: the directive of each, and what stands in it.
    let mut open: Vec<(Directive, Vec<Directive>)> = Vec::new();
    let mut top: Vec<Directive> = Vec::new();
    let mut words: Vec<(usize, String)> = Vec::new();
    for (line, token) in tokens(text)? {
        let fail = |why| ConvertError::Syntax { line, why };
        let directive = |words: &mut Vec<(usize, String)>| {
            let mut words = std::mem::take(words).into_iter();
            let (line, name) = words.next()?;
            let words = words.map(|(_, word)| word).collect();
            Some(Directive {
                line,
                name,
                words,
                block: None,
            })
        };
        let done = match token {
            Token::Word(word) => {
                words.push((line, word));
                continue;
            }
            Token::Begin => {
                let head = directive(&mut words).ok_or(fail("a block without a name"))?;
                if open.len() >= MAX_DEPTH {
                    return Err(fail("blocks within blocks, too deep"));
                }
                open.push((head, Vec::new()));
                continue;
            }
            Token::Stop => match directive(&mut words) {
                Some(directive) => directive,
                None => continue,
            },
            Token::End => {
                if !words.is_empty() {
                    return Err(fail("a `;` is missing"));
                }
                let (mut head, inner) = open.pop().ok_or(fail("a `}` too many"))?;
                head.block = Some(inner);
                head
            }
        };
        match open.last_mut() {
            Some((_, inner)) => inner.push(done),
            None => top.push(done),
        }
    }
    match (open.last(), words.first()) {
        (Some((head, _)), _) => Err(ConvertError::Syntax {
            line: head.line,
            why: "this block is not closed",
        }),
        (None, Some((line, _))) => Err(ConvertError::Syntax {
            line: *line,
            why: "a `;` is missing",
        }),
        (None, None) => Ok(top),
    }
}

/// The tokens of a text, with their lines.
fn tokens(text: &str) -> Result<Vec<(usize, Token)>, ConvertError> {
    let mut tokens = Vec::new();
    let mut word: Option<String> = None;
    let mut line = 1;
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '#' if word.is_none() => {
                while chars.peek().is_some_and(|c| *c != '\n') {
                    chars.next();
                }
            }
            // `${name}` is a part of a word.
            '{' if word.as_ref().is_some_and(|word| word.ends_with('$')) => {
                word.get_or_insert_default().push(c);
                for inner in chars.by_ref() {
                    word.get_or_insert_default().push(inner);
                    line += usize::from(inner == '\n');
                    if inner == '}' {
                        break;
                    }
                }
            }
            '{' | '}' | ';' => {
                tokens.extend(word.take().map(|word| (line, Token::Word(word))));
                let token = match c {
                    '{' => Token::Begin,
                    '}' => Token::End,
                    _ => Token::Stop,
                };
                tokens.push((line, token));
            }
            c if c.is_whitespace() => {
                tokens.extend(word.take().map(|word| (line, Token::Word(word))));
                line += usize::from(c == '\n');
            }
            '"' | '\'' if word.is_none() => {
                let begin = line;
                let mut inner = String::new();
                loop {
                    match chars.next() {
                        None => {
                            let why = "a quotation mark is not closed";
                            return Err(ConvertError::Syntax { line: begin, why });
                        }
                        Some(end) if end == c => break,
                        Some('\\') => match chars.next() {
                            Some('n') => inner.push('\n'),
                            Some('t') => inner.push('\t'),
                            Some('r') => inner.push('\r'),
                            Some(other @ ('"' | '\'' | '\\')) => inner.push(other),
                            other => {
                                inner.push('\\');
                                inner.extend(other);
                            }
                        },
                        Some(other) => {
                            line += usize::from(other == '\n');
                            inner.push(other);
                        }
                    }
                }
                tokens.push((begin, Token::Word(inner)));
            }
            '\\' => {
                let word = word.get_or_insert_default();
                word.push(c);
                word.extend(chars.next());
            }
            c => word.get_or_insert_default().push(c),
        }
    }
    tokens.extend(word.map(|word| (line, Token::Word(word))));
    Ok(tokens)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_and_quotes_are_read_with_their_lines() {
        let text = "# head\nhttp {\n  map $a ${b} { x 'y z;'; }\n  log \"a\\\"b\"; }\n";
        let all = directives(text).unwrap();
        assert_eq!(all.len(), 1);
        let map = &all[0].inner_directives()[0];
        assert_eq!(
            (map.line, map.words.as_slice()),
            (3, &["$a".to_owned(), "${b}".to_owned()][..])
        );
        assert_eq!(map.inner_directives()[0].word_at(0), "y z;");
        assert_eq!(
            (
                all[0].inner_directives()[1].line,
                all[0].inner_directives()[1].word_at(0)
            ),
            (4, "a\"b")
        );
        for broken in ["a {", "a }", "a", "a { b }", "a 'b;", "{ }"] {
            assert!(directives(broken).is_err(), "{broken}");
        }
        assert!(directives(&"a {".repeat(100)).is_err());
    }
}
