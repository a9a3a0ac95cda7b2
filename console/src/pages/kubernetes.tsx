// Kubernetes: the services whose endpoints are members, the controller of the Gateway API, and which of its objects are
// not served as they are written, and why.

import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { duration, plural, short } from "../format";
import { namespace, OUTSIDE } from "../namespaces";
import { href } from "../router";
import { Icon, type Level } from "../ui/icons";
import { Empty, Failed, Figures, Health, Loading, Panel, Scroll, SHOWN, useAnswer } from "../ui/kit";
import { NamespaceSelect } from "../ui/namespace";

interface Controller { controller: string; lease: string | null; leads: boolean; holder: string | null; last_success: number | null; error: string | null; configurations: number; refusals: number; status_writes: number }
interface Kind { kind: string; version: string | null; objects: number; last_success: number | null; error: string | null; failures: number; lists: number }
interface KubernetesObject { kind: string; namespace: string; name: string; attached_to?: string[]; addresses?: string[]; routes?: number; problems: { reason: string; message: string }[] }
interface Service {
  service: string; server: string; watching: boolean; version: string | null; slices: number; last_success: number | null; error: string | null; failures: number; lists: number; watches: number; events: number;
  ports: { port: string; members: number; draining: number; error: string | null }[];
}

const ago = (unix: number | null) => (unix === null ? "never" : `${duration(Math.max(0, Date.now() / 1000 - unix))} ago`);

const inChosen = (name: string) => namespace.value === "" || name === (namespace.value === OUTSIDE ? "" : namespace.value);

export function KubernetesView(): JSX.Element {
  const controller = useAnswer<Controller | null>("/v1/kubernetes/controller", 3);
  const services = useAnswer<Service[]>("/v1/kubernetes", 3);
  const kinds = useAnswer<Kind[]>("/v1/kubernetes/kinds", 5);
  const objects = useAnswer<KubernetesObject[]>("/v1/kubernetes/objects", 5);
  const answers = [controller, services, kinds, objects];
  const failed = answers.find((answer) => answer.error && answer.data === null);
  if (failed) return <Failed error={failed.error} retry={failed.again} />;
  if (answers.some((answer) => answer.at === 0)) return <Loading />;
  const known = { services: services.data ?? [], kinds: kinds.data ?? [], objects: objects.data ?? [] };
  if (!controller.data && known.services.length === 0)
    return (
      <div class="panel">
        <Empty title="Kubernetes is not in use">
          <p>Members can be the endpoints of a service: <code>{'{ kubernetes = "shop/web:http" }'}</code>. With a table <code>[kubernetes.gateway]</code> the balancer serves the gateways of a cluster.</p>
          <a class="button" href={href("config", "table", "kubernetes")}>Configure</a>
        </Empty>
      </div>
    );
  const names = [...new Set([...known.objects.map((object) => object.namespace), ...known.services.map((of) => of.service.split("/")[0]!)])].filter(Boolean).sort();
  const troubled = known.objects.filter((object) => object.problems.length > 0).length;
  const failing = known.services.filter((of) => troubleOf(of) !== null).length;
  return (
    <div class="stack">
      {controller.data?.error && <p class="banner warn"><Icon name="warn" />The gateways are not in effect as they are now: {controller.data.error}</p>}
      <Figures items={[
        ...(controller.data ? [
          { label: "Writes statuses", value: <Leader of={controller.data} /> },
          { label: "In effect", value: ago(controller.data.last_success), ...(controller.data.error ? { level: "warn" as const } : {}) },
          { label: "Objects", value: short(known.objects.length) },
          { label: "With problems", value: short(troubled), ...(troubled > 0 ? { level: "warn" as const } : {}) },
          { label: "Configurations", value: <>{short(controller.data.configurations)} <small>{controller.data.refusals > 0 ? `${short(controller.data.refusals)} refused` : ""}</small></> },
          { label: "Statuses written", value: short(controller.data.status_writes) },
        ] : []),
        { label: "Services", value: short(known.services.length) },
        { label: "Services with errors", value: short(failing), ...(failing > 0 ? { level: "bad" as const } : {}) },
      ]} />
      {controller.data && <Objects objects={known.objects} names={names} />}
      {known.services.length > 0 && <Services services={known.services} names={names} />}
      {known.kinds.length > 0 && <Kinds kinds={known.kinds} />}
    </div>
  );
}

/** Table of the first rows of a list, and how to find the others. */
function Rows<T>({ label, columns, numbers = [], of, row, none, hint }: { label: string; columns: string[]; numbers?: string[]; of: T[]; row: (one: T) => JSX.Element; none?: string; hint?: string }): JSX.Element {
  return (
    <Scroll label={label}>
      <table>
        <thead><tr>{columns.map((name) => <th key={name} scope="col">{name}</th>)}{numbers.map((name) => <th key={name} scope="col" class="num">{name}</th>)}</tr></thead>
        <tbody>{of.slice(0, SHOWN).map(row)}</tbody>
      </table>
      {none && of.length === 0 && <Empty title={none} />}
      {of.length > SHOWN && <p class="more muted">and {of.length - SHOWN} more{hint && `: ${hint}`}</p>}
    </Scroll>
  );
}

function Leader({ of }: { of: Controller }): JSX.Element {
  if (of.lease === null) return <>each balancer</>;
  if (of.leads) return <>this balancer</>;
  // The name of the balancer has a number behind it, which tells its processes apart.
  return <>{of.holder ? of.holder.replace(/_[0-9a-f]+$/, "") : "nobody"}</>;
}

function Objects({ objects, names }: { objects: KubernetesObject[]; names: string[] }): JSX.Element {
  const [find, setFind] = useState("");
  const [kind, setKind] = useState("");
  const [only, setOnly] = useState(false);
  const kinds = [...new Set(objects.map((object) => object.kind))];
  const wanted = find.trim().toLowerCase();
  const matches = objects.filter((object) =>
    inChosen(object.namespace) && (kind === "" || object.kind === kind) && (!only || object.problems.length > 0) &&
    (wanted === "" || `${object.namespace}/${object.name} ${object.attached_to?.join(" ") ?? ""}`.toLowerCase().includes(wanted)));
  // Those with problems first.
  const shown = [...matches.filter((object) => object.problems.length > 0), ...matches.filter((object) => object.problems.length === 0)];
  return (
    <Panel title={`Objects (${matches.length})`} live actions={
      <>
        <NamespaceSelect names={names} />
        <select aria-label="Kind" value={kind} onChange={(event) => setKind(event.currentTarget.value)}>
          <option value="">All kinds</option>
          {kinds.map((name) => <option key={name} value={name}>{name}</option>)}
        </select>
        <label class="check"><input type="checkbox" checked={only} onChange={(event) => setOnly(event.currentTarget.checked)} />Only with problems</label>
        <input type="search" aria-label="Filter objects" placeholder="Filter" value={find} onInput={(event) => setFind(event.currentTarget.value)} />
      </>
    }>
      <Rows label="Objects" columns={["Object", "Kind", "State", "Attached to", "Problems, and what to do"]} of={shown} none="No object matches" hint="choose a namespace or a kind, or filter by name" row={(object) => (
        <tr key={`${object.kind} ${object.namespace}/${object.name}`}>
          <th scope="row" class="nowrap">{object.namespace && `${object.namespace}/`}{object.name}</th>
          <td>{object.kind}</td>
          <td class="nowrap">
            <Health level={object.problems.length > 0 ? "warn" : "ok"}>{object.problems.length > 0 ? plural(object.problems.length, "problem") : "as written"}</Health>
            {(object.addresses ?? []).map((address) => <div key={address} class="small muted">{address}</div>)}
            {object.routes !== undefined && <div class="small muted">{plural(object.routes, "route")}</div>}
          </td>
          <td>{object.attached_to?.map((name) => <div key={name} class="nowrap">{name}</div>) ?? "–"}</td>
          <td>{object.problems.map((problem) => <div key={problem.reason + problem.message}><strong>{problem.reason}</strong> {problem.message}</div>)}</td>
        </tr>
      )} />
    </Panel>
  );
}

/** Why the members of a service may be old, or missing. */
function troubleOf(of: Service): string | null {
  return of.error ?? of.ports.find((port) => port.error !== null)?.error ?? null;
}

function Services({ services, names }: { services: Service[]; names: string[] }): JSX.Element {
  const [find, setFind] = useState("");
  const wanted = find.trim().toLowerCase();
  const matches = services.filter((of) => inChosen(of.service.split("/")[0]!) && of.service.toLowerCase().includes(wanted));
  const shown = [...matches.filter((of) => troubleOf(of) !== null), ...matches.filter((of) => troubleOf(of) === null)];
  const state = (of: Service): { level: Level; word: string } => {
    const trouble = troubleOf(of);
    return trouble !== null ? { level: "bad", word: trouble } : of.watching ? { level: "ok", word: "watching" } : { level: "off", word: "connecting" };
  };
  return (
    <Panel title={`Services with members (${matches.length})`} live actions={
      <>
        <NamespaceSelect names={names} />
        <input type="search" aria-label="Filter services" placeholder="Filter" value={find} onInput={(event) => setFind(event.currentTarget.value)} />
      </>
    }>
      <Rows label="Services with members" columns={["Service", "Watch", "Ports: members"]} numbers={["Slices", "Last answer", "Lists", "Watches", "Events", "Failures"]} of={shown} none="No service matches" hint="choose a namespace, or filter by name" row={(of) => (
        <tr key={of.service}>
          <th scope="row">{of.service}<div class="small muted nowrap">{of.server}</div></th>
          <td><Health level={state(of).level}>{state(of).word}</Health></td>
          <td>{of.ports.map((port) => <div key={port.port} class="nowrap">{port.port}: {plural(port.members, "member")}{port.draining > 0 && <span class="muted">, {port.draining} draining</span>}</div>)}</td>
          <td class="num">{of.slices}</td>
          <td class="num">{ago(of.last_success)}</td>
          <td class="num">{short(of.lists)}</td>
          <td class="num">{short(of.watches)}</td>
          <td class="num">{short(of.events)}</td>
          <td class="num">{short(of.failures)}</td>
        </tr>
      )} />
    </Panel>
  );
}

function Kinds({ kinds }: { kinds: Kind[] }): JSX.Element {
  return (
    <Panel title="Kinds that are followed" live>
      <Rows label="Kinds that are followed" columns={["Kind", "State", "Version"]} numbers={["Objects", "Last answer", "Lists", "Failures"]} of={kinds} row={(of) => (
        <tr key={of.kind}>
          <th scope="row">{of.kind}</th>
          <td>{of.error !== null ? <Health level="bad">{of.error}</Health> : of.version === null ? <Health level="off">the cluster does not have the kind</Health> : <Health level="ok">followed</Health>}</td>
          <td>{of.version ?? "–"}</td>
          <td class="num">{short(of.objects)}</td>
          <td class="num">{ago(of.last_success)}</td>
          <td class="num">{short(of.lists)}</td>
          <td class="num">{short(of.failures)}</td>
        </tr>
      )} />
    </Panel>
  );
}
