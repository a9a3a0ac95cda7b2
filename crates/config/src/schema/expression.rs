//! Expressions that make one load of many metrics: a small part of the query language of
//! Prometheus, for one moment and one exporter.
//!
//! ```text
//! sum    = term (("+" | "-") term)*
//! term   = factor (("*" | "/") factor)*
//! factor = number | "(" sum ")" | aggregate "(" series ")" | series
//! series = selector | "rate" "(" selector ")"
//! selector = metric [ "{" label ("=" | "!=") '"' text '"' ("," …)* "}" ]
//! ```
//!
//! Parsed by the configuration, so that a mistake is found before it is used.

use std::fmt;

/// Longest text of an expression in bytes.
const MAX_TEXT: usize = 1024;

/// Deepest nesting of brackets.
const MAX_DEPTH: usize = 16;

/// Calculation of a load.
#[derive(Clone, Debug, PartialEq)]
pub enum Expression {
    /// A number.
    Number(f64),
    /// Two values.
    Binary(Box<Expression>, Operator, Box<Expression>),
    /// Series that match, made one.
    Series(Aggregate, Series),
}

/// Operator between two values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operator {
    /// The operator `+`.
    Add,
    /// The operator `-`.
    Subtract,
    /// The operator `*`.
    Multiply,
    /// The operator `/`.
    Divide,
}

/// Aggregation of several series to one value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Aggregate {
    /// There must be no more than one.
    Only,
    /// The sum of the values.
    Sum,
    /// The mean of the values.
    Avg,
    /// The smallest.
    Min,
    /// The largest.
    Max,
    /// Number of series.
    Count,
}

/// Series that an expression means, and if it means their value or its growth.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// Name of the metric.
    pub metric: String,
    /// Conditions on labels.
    pub labels: Vec<Label>,
    /// True if the growth per second since the last time is meant.
    pub rate: bool,
}

/// Condition on a label. A label that is not there is empty.
#[derive(Clone, Debug, PartialEq)]
pub struct Label {
    /// Name of the label.
    pub name: String,
    /// Value of the label.
    pub value: String,
    /// True if the label must have the value, false if it must have another one.
    pub equal: bool,
}

/// Error in an expression, with its place (in bytes, from 1).
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("not an expression: {message} at character {at}")]
pub struct InvalidExpression {
    /// Description of the error.
    pub message: &'static str,
    /// Place of the error.
    pub at: usize,
}

impl Expression {
    /// Parses an expression.
    pub fn parse(text: &str) -> Result<Self, InvalidExpression> {
        let mut parser = Parser { text, at: 0 };
        if text.len() > MAX_TEXT {
            return Err(parser.error("longer than 1024 bytes"));
        }
        let expression = parser.sum(0)?;
        match parser.peek() {
            None => Ok(expression),
            Some(_) => Err(parser.error("an operator is missing")),
        }
    }

    /// All series in it.
    pub fn series(&self) -> Vec<&Series> {
        match self {
            Expression::Number(_) => Vec::new(),
            Expression::Series(_, series) => vec![series],
            Expression::Binary(a, _, b) => [a.series(), b.series()].concat(),
        }
    }
}

impl fmt::Display for Series {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.metric)?;
        let labels = self.labels.iter().map(|label| {
            let sign = if label.equal { "=" } else { "!=" };
            format!("{}{sign}{:?}", label.name, label.value)
        });
        if self.labels.is_empty() {
            return Ok(());
        }
        write!(f, "{{{}}}", labels.collect::<Vec<_>>().join(","))
    }
}

struct Parser<'t> {
    text: &'t str,
    at: usize,
}

impl Parser<'_> {
    fn error(&self, message: &'static str) -> InvalidExpression {
        InvalidExpression {
            message,
            at: self.at + 1,
        }
    }

    fn rest(&self) -> &str {
        self.text.get(self.at..).unwrap_or_default()
    }

    /// The next byte that is no white space.
    fn peek(&mut self) -> Option<u8> {
        let rest = self.rest();
        self.at += rest.len() - rest.trim_start().len();
        self.rest().bytes().next()
    }

    fn take(&mut self, byte: u8) -> bool {
        let taken = self.peek() == Some(byte);
        self.at += usize::from(taken);
        taken
    }

    fn expect(&mut self, byte: u8, message: &'static str) -> Result<(), InvalidExpression> {
        let taken = self.take(byte);
        taken.then_some(()).ok_or_else(|| self.error(message))
    }

    fn sum(&mut self, depth: usize) -> Result<Expression, InvalidExpression> {
        let mut left = self.term(depth)?;
        loop {
            let operator = match self.peek() {
                Some(b'+') => Operator::Add,
                Some(b'-') => Operator::Subtract,
                _ => return Ok(left),
            };
            self.at += 1;
            let right = self.term(depth)?;
            left = Expression::Binary(Box::new(left), operator, Box::new(right));
        }
    }

    fn term(&mut self, depth: usize) -> Result<Expression, InvalidExpression> {
        let mut left = self.factor(depth)?;
        loop {
            let operator = match self.peek() {
                Some(b'*') => Operator::Multiply,
                Some(b'/') => Operator::Divide,
                _ => return Ok(left),
            };
            self.at += 1;
            let right = self.factor(depth)?;
            left = Expression::Binary(Box::new(left), operator, Box::new(right));
        }
    }

    fn factor(&mut self, depth: usize) -> Result<Expression, InvalidExpression> {
        if depth > MAX_DEPTH {
            return Err(self.error("too many brackets"));
        }
        match self.peek() {
            Some(b'(') => {
                self.at += 1;
                let inner = self.sum(depth + 1)?;
                self.expect(b')', "\")\" is missing")?;
                Ok(inner)
            }
            Some(b'0'..=b'9' | b'.') => self.number(),
            Some(byte) if is_name_start(byte) => self.named(),
            _ => Err(self.error("a number or a metric is missing")),
        }
    }

    fn number(&mut self) -> Result<Expression, InvalidExpression> {
        let rest = self.rest();
        let mut end = 0;
        let mut before = b' ';
        for byte in rest.bytes() {
            let is_sign = matches!(byte, b'+' | b'-') && matches!(before, b'e' | b'E');
            if !(byte.is_ascii_digit() || matches!(byte, b'.' | b'e' | b'E') || is_sign) {
                break;
            }
            before = byte;
            end += 1;
        }
        let number = rest.get(..end).and_then(|text| text.parse::<f64>().ok());
        match number.filter(|number| number.is_finite()) {
            Some(number) => {
                self.at += end;
                Ok(Expression::Number(number))
            }
            None => Err(self.error("not a number")),
        }
    }

    fn name(&mut self) -> Result<String, InvalidExpression> {
        let start = self.peek();
        let rest = self.rest();
        let end = rest.bytes().position(|byte| !is_name(byte));
        let name = rest.get(..end.unwrap_or(rest.len())).unwrap_or_default();
        if !start.is_some_and(is_name_start) {
            return Err(self.error("a name is missing"));
        }
        let name = name.to_owned();
        self.at += name.len();
        Ok(name)
    }

    /// A selector, or a function of one.
    fn named(&mut self) -> Result<Expression, InvalidExpression> {
        let start = self.at;
        let name = self.name()?;
        if self.peek() != Some(b'(') {
            let series = self.selector(name, false)?;
            return Ok(Expression::Series(Aggregate::Only, series));
        }
        let aggregate = match name.as_str() {
            "rate" => {
                let series = self.rate()?;
                return Ok(Expression::Series(Aggregate::Only, series));
            }
            "sum" => Aggregate::Sum,
            "avg" => Aggregate::Avg,
            "min" => Aggregate::Min,
            "max" => Aggregate::Max,
            "count" => Aggregate::Count,
            _ => {
                self.at = start;
                return Err(self.error("unknown function, not rate, sum, avg, min, max or count"));
            }
        };
        self.at += 1;
        let name = self.name()?;
        let series = match (name.as_str(), self.peek()) {
            ("rate", Some(b'(')) => self.rate()?,
            _ => self.selector(name, false)?,
        };
        self.expect(b')', "\")\" is missing")?;
        Ok(Expression::Series(aggregate, series))
    }

    /// Parses the part after `rate`.
    fn rate(&mut self) -> Result<Series, InvalidExpression> {
        self.expect(b'(', "\"(\" is missing")?;
        let name = self.name()?;
        let series = self.selector(name, true)?;
        self.expect(b')', "\")\" is missing")?;
        Ok(series)
    }

    fn selector(&mut self, metric: String, rate: bool) -> Result<Series, InvalidExpression> {
        let mut labels = Vec::new();
        if self.take(b'{') {
            while !self.take(b'}') {
                labels.push(self.label()?);
                if !self.take(b',') && self.peek() != Some(b'}') {
                    return Err(self.error("\",\" or \"}\" is missing"));
                }
            }
        }
        Ok(Series {
            metric,
            labels,
            rate,
        })
    }

    fn label(&mut self) -> Result<Label, InvalidExpression> {
        let name = self.name()?;
        let equal = !self.take(b'!');
        self.expect(b'=', "\"=\" or \"!=\" is missing")?;
        self.expect(b'"', "a text in double quotes is missing")?;
        let rest = self.rest();
        let Some(end) = rest.find('"') else {
            return Err(self.error("the text is not closed"));
        };
        let value = rest.get(..end).unwrap_or_default().to_owned();
        if value.contains('\\') {
            return Err(self.error("\"\\\" is not allowed here"));
        }
        self.at += end + 1;
        Ok(Label { name, value, equal })
    }
}

fn is_name_start(byte: u8) -> bool {
    byte.is_ascii_alphabetic() || matches!(byte, b'_' | b':')
}

fn is_name(byte: u8) -> bool {
    is_name_start(byte) || byte.is_ascii_digit()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse(text: &str) -> Expression {
        Expression::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    #[test]
    fn operators_bind_as_usual() {
        use Expression::{Binary, Number};
        use Operator::{Divide, Subtract};
        let number = |n| Box::new(Number(n));
        let quotient = Box::new(Binary(number(4.0), Divide, number(2.0)));
        let left = Box::new(Binary(number(1.0), Subtract, quotient));
        assert_eq!(parse("1-4/ 2 - .5e1"), Binary(left, Subtract, number(5.0)));
        assert_eq!(parse("((7))"), Number(7.0));
    }

    #[test]
    fn series_with_all_there_is() {
        let Expression::Series(aggregate, series) =
            parse(r#" max ( rate( a:b_c { x = "y z" , e!="", } ) ) "#)
        else {
            panic!("not series")
        };
        assert_eq!(aggregate, Aggregate::Max);
        assert!(series.rate);
        assert_eq!(series.to_string(), r#"a:b_c{x="y z",e!=""}"#);
        let Expression::Series(Aggregate::Only, series) = parse("rate") else {
            panic!("a metric may be called anything")
        };
        assert_eq!(series.metric, "rate");
        assert!(matches!(
            parse("sum(rate)"),
            Expression::Series(Aggregate::Sum, _)
        ));
    }

    #[test]
    fn mistakes_are_found() {
        for (text, at) in [
            ("", 1),
            ("1 -", 4),
            ("1 2", 3),
            ("a b", 3),
            ("median(a)", 1),
            ("sum(a", 6),
            ("sum(1)", 5),
            ("sum(sum(a))", 8),
            ("a{b}", 4),
            ("a{b=c}", 5),
            ("a{b=~\"c\"}", 5),
            ("a{b=\"c}", 6),
            ("a{b=\"c\" d=\"e\"}", 9),
            ("a{b=\"\\\"\"}", 6),
            ("1e999", 1),
            ("1.2.3", 1),
            ("rate(a)[5m]", 8),
            ("ä", 1),
        ] {
            let error = Expression::parse(text).unwrap_err();
            assert_eq!(error.at, at, "{text}: {error}");
        }
        assert!(Expression::parse(&"(".repeat(1000)).is_err());
        assert!(Expression::parse(&"1+".repeat(1000)).is_err());
    }

    proptest! {
        #[test]
        fn no_text_breaks_it(text in "[a-c{}()=!\"0-9.,+*/ e-]{0,40}|\\PC{0,40}") {
            let _ = Expression::parse(&text);
        }
    }
}
