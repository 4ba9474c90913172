/* SPDX-License-Identifier: Apache-2.0 */
/* Meshes, as trainers see them. */
#include "conn/say.h"
#include "tensor/mesh.h"

SK_API int sk_mesh_create(int ndim, const int64_t *shape,
			  const int32_t *ranks, const char *const *names,
			  struct sk_mesh **ret_mesh)
{
	struct sk_err err = { "" };

	if (!shape || !ret_mesh)
		return sk_say(sk_err_set(&err, -EINVAL, "a mesh needs a shape "
					 "and a variable to go to"), &err);
	return sk_say(sk_mesh_new(ndim, shape, ranks, names, ret_mesh, &err),
		      &err);
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
