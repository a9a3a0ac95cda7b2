import type { JSX } from "preact";
import { Loading } from "../ui/kit";
export function AuditPage(): JSX.Element {
  return <Loading />;
}
