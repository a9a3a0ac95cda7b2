//! The cost of a change to a group does not depend on the number of groups. Cost is counted in
//! allocations, since the work of a change is to make things anew.

#![allow(clippy::unwrap_used)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Arc;

use evenkeel_config::{Config, Corba as Settings};
use evenkeel_corba::call::{Call, Outcome};
use evenkeel_corba::directory::Directory;
use evenkeel_corba::name::Name;
use evenkeel_corba::service::{Address, LoadManager, Parts, store};
use evenkeel_corba::types::{Properties, Property};
use evenkeel_giop::any::{Any, Idl};
use evenkeel_giop::cdr::{Endian, Reader, Writer};
use evenkeel_giop::client::{self, Client};
use evenkeel_giop::ior::Ior;
use evenkeel_manager::Manager;
use evenkeel_net::Clock;

struct Counting;

thread_local! {
    /// Allocations, and their bytes. Per thread: the test harness allocates on its own ones.
    static ALLOCATED: Cell<(u64, u64)> = const { Cell::new((0, 0)) };
}

// SAFETY: hands every call on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATED.with(|allocated| {
            let (count, bytes) = allocated.get();
            allocated.set((count + 1, bytes + layout.size() as u64));
        });
        // SAFETY: the caller keeps the contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the contract.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const TYPE: &str = "IDL:Stock/Factory:1.0";

async fn start() -> Arc<LoadManager> {
    let manager = Manager::new(Clock::start(), Arc::new(()));
    manager.apply_config(Config::default()).await.unwrap();
    let parts = Parts {
        manager,
        directory: Arc::new(Directory::default()),
        client: Client::new(client::Settings::default()),
        runtime: tokio::runtime::Handle::current(),
    };
    let settings = Settings {
        state_file: None,
        liveness: None,
        ..Settings::default()
    };
    let address = Address {
        host: "balancer.example".into(),
        port: 2809,
        alternates: Vec::new(),
    };
    LoadManager::open(parts, Arc::new(settings), address, store::fresh_state()).unwrap()
}

/// The body of the answer to a call.
async fn call(
    manager: &Arc<LoadManager>,
    operation: &str,
    arguments: impl FnOnce(&mut Writer),
) -> Vec<u8> {
    match manager.invoke(Call::new_local(operation, arguments)).await {
        Outcome::Reply(body) => body,
        other => panic!("{operation}: {other:?}"),
    }
}

/// A group with a member.
async fn create(manager: &Arc<LoadManager>) -> (Ior, Any) {
    let style = "org.omg.PortableGroup.MembershipStyle";
    let by_hand: Properties = vec![Property::new(style, &0i32)];
    let body = call(manager, "create_object", |w| {
        w.write_string(TYPE);
        by_hand.write(w);
    });
    let body = body.await;
    let mut reader = Reader::new(&body, Endian::NATIVE);
    let group = (
        Ior::read(&mut reader).unwrap(),
        Any::read(&mut reader).unwrap(),
    );
    add(manager, &group.0, "first").await;
    group
}

async fn add(manager: &Arc<LoadManager>, group: &Ior, at: &str) {
    call(manager, "add_member", |w| {
        group.write(w);
        Name::from_id(at).write(w);
        Ior::new_iiop(TYPE, at, 4711, b"key").write(w);
    })
    .await;
}

/// Returns the allocations of one change of each kind: their number, and their bytes.
async fn cost(manager: &Arc<LoadManager>) -> [(u64, u64); 5] {
    /// Counts the allocations of one change.
    async fn counted(change: impl Future<Output = ()>) -> (u64, u64) {
        // What other tasks have to do because of the last change comes first.
        for _ in 0..50 {
            tokio::task::yield_now().await;
        }
        let before = ALLOCATED.with(Cell::get);
        change.await;
        for _ in 0..50 {
            tokio::task::yield_now().await;
        }
        let after = ALLOCATED.with(Cell::get);
        (after.0 - before.0, after.1 - before.1)
    }
    let mut group = None;
    let created = counted(async { group = Some(create(manager).await) }).await;
    let (group, creation) = group.unwrap();
    let added = counted(add(manager, &group, "second")).await;
    let removed = counted(async {
        call(manager, "remove_member", |w| {
            group.write(w);
            Name::from_id("first").write(w);
        })
        .await;
    });
    let removed = removed.await;
    let place = format!("place{}", fastrand::u64(..));
    let registered = counted(async {
        call(manager, "register_load_alert", |w| {
            Name::from_id(&place).write(w);
            Ior::new_iiop("IDL:A:1.0", "127.0.0.1", 1, b"alert").write(w);
        })
        .await;
    });
    let registered = registered.await;
    let deleted = counted(async {
        call(manager, "delete_object", |w| creation.write(w)).await;
    });
    [created, added, removed, registered, deleted.await]
}

#[test]
fn c9_a_change_allocates_no_more_with_many_groups() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let manager = start().await;
        for _ in 0..100 {
            create(&manager).await;
        }
        let few = cost(&manager).await;
        for _ in 0..3_000 {
            create(&manager).await;
        }
        let many = cost(&manager).await;
        for (few, many) in few.into_iter().zip(many) {
            // A map of many is deeper than one of few.
            assert!(
                many.0 <= 2 * few.0,
                "{many:?} allocations and bytes, {few:?} with few"
            );
            assert!(
                many.1 <= 2 * few.1 + 65536,
                "{many:?} allocations and bytes, {few:?} with few"
            );
        }
    });
}
