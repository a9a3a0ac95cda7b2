//! Times and numbers of both languages as Evenkeel has them.

/// A day in milliseconds, the longest time of most keys.
pub(crate) const DAY: u64 = 86_400_000;

/// Ten minutes in milliseconds, the longest time for connecting and waiting.
pub(crate) const TEN_MINUTES: u64 = 600_000;

/// Milliseconds of a time such as `10s`, `1m30s` or a plain number of `unit` milliseconds.
pub(crate) fn parse_millis(text: &str, unit: u64) -> Option<u64> {
    if let Ok(number) = text.parse::<u64>() {
        return number.checked_mul(unit);
    }
    let (mut rest, mut sum) = (text, 0_u64);
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit())?;
        let (number, after) = rest.split_at_checked(end)?;
        let number: u64 = number.parse().ok()?;
        let end = after
            .find(|c: char| c.is_ascii_digit())
            .unwrap_or(after.len());
        let (unit, after) = after.split_at_checked(end)?;
        let unit = match unit.trim() {
            "ms" => 1,
            "s" => 1000,
            "m" => 60_000,
            "h" => 3_600_000,
            "d" => DAY,
            // Less than what can be told here.
            "us" => 0,
            _ => return None,
        };
        sum = sum.checked_add(number.checked_mul(unit)?)?;
        rest = after;
    }
    Some(sum)
}

/// A time as the file has it, at least a millisecond and at most `longest`.
pub(crate) fn time(millis: u64, longest: u64) -> String {
    let millis = millis.clamp(1, longest);
    for (unit, name) in [(DAY, "d"), (3_600_000, "h"), (60_000, "m"), (1000, "s")] {
        if millis.is_multiple_of(unit) {
            return format!("{}{name}", millis / unit);
        }
    }
    format!("{millis}ms")
}

/// A size such as `10m` or `8k` as the file has it.
pub(crate) fn size(text: &str) -> Option<String> {
    let lower = text.to_ascii_lowercase();
    let (number, unit) = match lower.strip_suffix(['k', 'm', 'g']) {
        Some(number) => (number, lower.get(number.len()..).unwrap_or_default()),
        None => (lower.as_str(), ""),
    };
    let number: u64 = number.parse().ok().filter(|number| *number <= 1 << 20)?;
    Some(match unit {
        "k" => format!("{number}KiB"),
        "m" => format!("{number}MiB"),
        "g" => format!("{number}GiB"),
        _ => format!("{number}B"),
    })
}

/// True if the text is a network, or an address.
pub(crate) fn is_network(text: &str) -> bool {
    text.parse::<evenkeel_config::networks::Network>().is_ok()
}
