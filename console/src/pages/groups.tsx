import type { JSX } from "preact";
import { useEffect, useState } from "preact/hooks";
import { levelOf } from "../health";
import { focus, sample } from "../live";
import { isIn, namespace } from "../namespaces";
import { href } from "../router";
import { Empty, Loading } from "../ui/kit";
import { NamespaceSelect, useRules } from "../ui/namespace";
import { GroupsTable } from "./overview";

export function GroupsPage(): JSX.Element {
  const [find, setFind] = useState("");
  const [only, setOnly] = useState(false);
  useEffect(() => {
    focus.value = null;
  }, []);
  const { names } = useRules();
  const now = sample.value;
  if (!now) return <Loading what="Waiting for the first sample …" />;
  const shown = now.groups.filter((group) => isIn(group.name, namespace.value) && group.name.includes(find) && (!only || levelOf(group) !== "ok"));
  return (
    <>
      <div class="page-head">
        <h1>Groups</h1>
        <div class="actions">
          <NamespaceSelect names={names} outside="Without Kubernetes" />
          <label class="check"><input type="checkbox" checked={only} onChange={(event) => setOnly(event.currentTarget.checked)} />Only with trouble</label>
          <input type="search" aria-label="Filter by name" placeholder="Filter by name" value={find} onInput={(event) => setFind(event.currentTarget.value)} />
        </div>
      </div>
      {now.groups.length === 0 && namespace.value === "" ? (
        <div class="panel"><Empty title="No groups yet"><p>A group is a set of members, and the way one of them is chosen.</p><a class="button primary" href={href("config", "new", "group")}>Create a group</a></Empty></div>
      ) : shown.length === 0 ? (
        <div class="panel"><Empty title="No group matches" /></div>
      ) : (
        <GroupsTable groups={shown} />
      )}
    </>
  );
}
