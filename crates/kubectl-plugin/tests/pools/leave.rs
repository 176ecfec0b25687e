//! Nodes that leave a pool whose `onLeave` is Reset, and a pool that is deleted.

use std::time::Duration;

use serde_json::json;

use testkit::api_server::{Fault, FaultKind, Verb};
use testkit::pools::{World, name};

use super::{POOL, condition, spec, with_controller};

#[tokio::test(start_paused = true)]
async fn nodes_that_leave_run_their_own_configuration_one_after_the_other() {
    let world = World::new(10);
    let reset = json!({"onLeave": "Reset", "rollout": {"maxUnavailable": 1}});
    let script = async {
        world.server.put_pool(POOL, &spec(60, &reset));
        world.until_pool(POOL, |pool| condition(pool, "Ready") == ("True", "Complete")).await;
        for number in 0..3 {
            world.server.patch_node(&name(number), json!({"metadata": {"labels": {"all": null}}}));
        }
        while world.count("") < 3 {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        let pool = world.until_pool(POOL, |pool| pool["status"]["nodes"] == 7).await;
        assert_eq!(condition(&pool, "Ready"), ("True", "Complete"));
    };
    with_controller(&world, script).await;
    assert_eq!(world.count(""), 3);
    let mut resets: Vec<_> = world.sent().into_iter().filter(|sent| sent.to.is_empty()).collect();
    assert_eq!(resets.len(), 3);
    resets.dedup_by_key(|sent| sent.at);
    assert_eq!(resets.len(), 3, "each waits until the one before it has started its kubelet anew: {resets:?}");
}

#[tokio::test(start_paused = true)]
async fn a_pool_that_is_deleted_is_carried_out_no_further() {
    let world = World::new(200);
    let at_once = json!({"rollout": {"canaries": 0, "maxUnavailable": "100%"}});
    let script = async {
        // Each write takes its time, so that some come after the deletion.
        let slow = Duration::from_millis(200);
        world.server.faults().push(Fault::new(Verb::Patch, "/nodes/", FaultKind::Slow(slow)));
        world.server.put_pool(POOL, &spec(60, &at_once));
        while world.sent().len() < 10 {
            tokio::time::sleep(slow).await;
        }
        world.server.delete_pool(POOL);
        tokio::time::sleep(Duration::from_secs(3600)).await;
    };
    with_controller(&world, script).await;
    let sent = world.sent().len();
    assert!((10..100).contains(&sent), "{sent} of 200 after it was gone at the tenth");
}
