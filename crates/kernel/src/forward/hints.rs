//! Hints of the program for the table that has a packet's connection.

use super::layout::Listener;

/// Bytes of a bit for each port.
const PORTS: usize = 1 << 13;

/// Returns `struct evk_hints`: ports of listeners, and ports that members see with full NAT.
pub(super) fn write_hints(listeners: &[Listener]) -> Vec<u8> {
    let (mut of_listeners, mut sources) = (vec![0; PORTS], vec![0; PORTS]);
    for listener in listeners {
        mark(&mut of_listeners, listener.address.port());
        let nat = listener.nat.into_iter();
        for port in nat.flat_map(|ports| (ports.first..=u16::MAX).take(ports.count.into())) {
            mark(&mut sources, port);
        }
    }
    [of_listeners, sources].concat()
}

/// Sets the bit of a port, in words of 64 bits.
fn mark(bits: &mut [u8], port: u16) {
    let (word, bit) = (usize::from(port >> 6), u64::from(port & 63));
    let bytes = (1u64 << bit).to_ne_bytes();
    let place = bits.iter_mut().skip(8 * word);
    place.zip(bytes).for_each(|(to, from)| *to |= from);
}

#[cfg(test)]
mod tests {
    use super::super::layout::NatPorts;
    use super::*;

    fn has(bits: &[u8], port: u16) -> bool {
        let word = bits.chunks(8).nth(usize::from(port >> 6)).unwrap();
        u64::from_ne_bytes(word.try_into().unwrap()) >> (port & 63) & 1 == 1
    }

    #[test]
    fn ports_have_a_bit_each() {
        let listener = |port, nat| Listener {
            address: ([192, 0, 2, 1], port).into(),
            group: 0,
            retries: 0,
            nat,
            is_direct: false,
            has_tunnel: false,
            has_rows: false,
            is_limited: false,
        };
        let ports = NatPorts {
            first: 65_530,
            count: 6,
        };
        let hints = write_hints(&[listener(80, None), listener(65_535, Some(ports))]);
        let (listeners, sources) = hints.split_at(PORTS);
        for port in 0..=u16::MAX {
            assert_eq!(has(listeners, port), port == 80 || port == 65_535);
            assert_eq!(has(sources, port), port >= 65_530);
        }
    }
}
