//! `Date` of the balancer's own answers (RFC 9110, section 6.6.1): one text a second.

use std::cell::Cell;
use std::time::{SystemTime, UNIX_EPOCH};

use jiff::Timestamp;

/// Length of a date in the form that HTTP prefers (section 5.6.7).
const LEN: usize = "Sun, 06 Nov 1994 08:49:37 GMT".len();

/// The text of the last second for which somebody has asked.
#[derive(Debug)]
pub(crate) struct HttpDate(Cell<(u64, [u8; LEN])>);

/// A date as a field of a head has it.
pub(crate) struct DateText([u8; LEN]);

impl DateText {
    pub(crate) fn text(&self) -> Option<&str> {
        std::str::from_utf8(&self.0).ok()
    }
}

impl Default for HttpDate {
    fn default() -> Self {
        HttpDate(Cell::new((u64::MAX, [b' '; LEN])))
    }
}

impl HttpDate {
    /// The date of now; `None` if the clock is beyond what the form can say.
    pub(crate) fn current_text(&self) -> Option<DateText> {
        self.text_at(SystemTime::now())
    }

    fn text_at(&self, at: SystemTime) -> Option<DateText> {
        let second = at.duration_since(UNIX_EPOCH).ok()?.as_secs();
        let (known, text) = self.0.get();
        if known == second {
            return Some(DateText(text));
        }
        let time = Timestamp::from_second(i64::try_from(second).ok()?).ok()?;
        let text = time.strftime("%a, %d %b %Y %H:%M:%S GMT").to_string();
        let text = <[u8; LEN]>::try_from(text.as_bytes()).ok()?;
        self.0.set((second, text));
        Some(DateText(text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_date_is_as_http_prefers_it() {
        let date = HttpDate::default();
        let at = |seconds: f64| {
            let date = date.text_at(UNIX_EPOCH + Duration::from_secs_f64(seconds));
            date.and_then(|date| date.text().map(str::to_owned))
        };
        let first = Some("Sun, 06 Nov 1994 08:49:37 GMT".to_owned());
        assert_eq!(at(784_111_777.0), first);
        assert_eq!(at(784_111_777.9), first);
        assert_eq!(at(784_111_778.0).unwrap(), "Sun, 06 Nov 1994 08:49:38 GMT");
        assert_eq!(at(0.0).unwrap(), "Thu, 01 Jan 1970 00:00:00 GMT");
        // A year of five digits.
        assert_eq!(at(253_402_300_800.0), None);
    }
}
