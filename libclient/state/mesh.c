/* SPDX-License-Identifier: Apache-2.0 */
/* Meshes, as trainers see them. */
#include "conn/say.h"
#include "tensor/mesh.h"
#include "tensor/name.h"

/* What else is wrong with them, and with @ndim, sk_mesh_new() says. */
static int check_names(int ndim, const char *const *names, struct sk_err *err)
{
	int r = 0;

	for (int d = 0; names && d < ndim && d < SK_MAX_DIMS && r >= 0; d++)
		if (names[d] && *names[d])
			r = sk_name_check_said(names[d], "mesh's dimension",
					       err);
	return r;
}

SK_API int sk_mesh_create(int ndim, const int64_t *shape,
			  const int32_t *ranks, const char *const *names,
			  struct sk_mesh **ret_mesh)
{
	struct sk_err err = { "" };
	int r;

	if (!shape || !ret_mesh)
		return sk_say(sk_err_set(&err, -EINVAL, "a mesh needs a shape "
					 "and a variable to go to"), &err);
	r = check_names(ndim, names, &err);
	if (r >= 0)
		r = sk_mesh_new(ndim, shape, ranks, names, ret_mesh, &err);
	return sk_say(r, &err);
}

SK_API int sk_mesh_child(const struct sk_mesh *mesh, int32_t rank,
			 const char *const *names, int n,
			 struct sk_mesh **ret_mesh)
{
	struct sk_err err = { "" };

	if (!mesh || !names || !ret_mesh)
		return sk_say(sk_err_set(&err, -EINVAL, "a child needs a mesh "
					 "and names"), &err);
	return sk_say(sk_mesh_slice(mesh, rank, names, n, ret_mesh, &err),
		      &err);
}

SK_API void sk_mesh_release(struct sk_mesh *mesh)
{
	sk_mesh_unref(mesh);
}
