import type { JSX } from "preact";
import { Loading } from "../ui/kit";
export function WhatIfPage(): JSX.Element {
  return <Loading />;
}
