//! Memory for what clients want by name, shared out among their networks.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::net::IpAddr;
use std::rc::Rc;

use evenkeel_net::network::network_of;

/// Part of all that one network may have.
const PART: usize = 4;

/// Bytes that the streams of all clients hold.
#[derive(Debug)]
pub(crate) struct Holdings {
    most: usize,
    all: Cell<usize>,
    by_network: RefCell<HashMap<IpAddr, usize>>,
}

impl Holdings {
    /// Holdings of at most so many bytes.
    pub(crate) fn new(most: usize) -> Rc<Self> {
        Rc::new(Holdings {
            most,
            all: Cell::new(0),
            by_network: RefCell::default(),
        })
    }

    /// Begins to count a stream of a client.
    pub(crate) fn add_stream(self: &Rc<Self>, client: IpAddr) -> Holding {
        Holding {
            holdings: Rc::clone(self),
            network: network_of(client),
            bytes: 0,
        }
    }
}

/// Bytes that one stream holds, until it is dropped.
#[derive(Debug)]
pub(crate) struct Holding {
    holdings: Rc<Holdings>,
    network: IpAddr,
    bytes: usize,
}

impl Holding {
    /// Sets the bytes that the stream holds now to `bytes`; false if that is more than there is for the
    /// stream.
    pub(crate) fn set(&mut self, bytes: usize) -> bool {
        let Holdings {
            most,
            all,
            by_network,
        } = &*self.holdings;
        let mut networks = by_network.borrow_mut();
        let of_network = networks.get(&self.network).copied().unwrap_or_default();
        let here = (of_network + bytes).saturating_sub(self.bytes);
        let everywhere = (all.get() + bytes).saturating_sub(self.bytes);
        let fits = here <= most / PART && everywhere <= *most;
        if bytes > self.bytes && !fits {
            return false;
        }
        match here {
            0 => drop(networks.remove(&self.network)),
            here => drop(networks.insert(self.network, here)),
        }
        all.set(everywhere);
        self.bytes = bytes;
        true
    }
}

impl Drop for Holding {
    fn drop(&mut self) {
        self.set(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn n5_one_network_gets_a_part_and_others_the_rest() {
        let holdings = Holdings::new(1000);
        let enter = |client: &str| holdings.add_stream(client.parse().unwrap());
        let (mut first, mut same) = (enter("2001:db8::1"), enter("2001:db8::2"));
        assert!(first.set(200) && !same.set(51) && same.set(50));
        assert!(!first.set(201), "it has its part");
        let mut others: Vec<_> = ["192.0.2.1", "192.0.2.2", "192.0.2.3"].map(enter).into();
        assert!(others.iter_mut().all(|other| other.set(250)));
        let mut late = enter("192.0.2.4");
        assert!(!late.set(1), "there is no more");
        assert!(first.set(100) && late.set(100) && !late.set(101));
        drop((others, late, first));
        assert_eq!(holdings.all.get(), 50);
        drop(same);
        assert!(holdings.by_network.borrow().is_empty());
    }
}
