"""A round as files that light devices read: question, arrays, plan and terms, each under the
SHA-256 of its bytes."""

from __future__ import annotations

import hashlib
import json

from fedrec.federation.protocol import Invitation, Terms
from fedrec.federation.wire import pack_terms, question_digest, question_header


def described(terms: Terms, invitation: Invitation) -> tuple[dict[str, bytes], bytes]:
    """Files by SHA-256, and what is told of the round, as a light device reads both."""
    question = invitation.question
    plan = invitation.plan
    header = question_header(question, run=invitation.run, plan=plan.digest())
    named = pack_terms(terms)
    arrays = [array.tobytes() for array in question.public.values()]
    contents = [named, header, json.dumps(plan.content(), sort_keys=True).encode(), *arrays]
    told = {
        "run": invitation.run,
        "round": question.round,
        "question": question_digest(header),
        "quorum": invitation.quorum,
    }
    told["terms"] = hashlib.sha256(named).hexdigest()
    return {hashlib.sha256(content).hexdigest(): content for content in contents}, json.dumps(
        told
    ).encode()
